"""The recipes: one module each, found by its name. `recipe()` in it returns the configuration, its docstring explains it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.errors import UsageError, nearest

if TYPE_CHECKING:
    from stepsnet.train.config import TrainConfig


class _Recipes(Mapping[str, "Callable[[], TrainConfig]"]):
    """The modules beside this file. Listing them imports none, so that `stepsnet train --help` needs no torch."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Callable[[], TrainConfig]:
        if name not in set(self):
            raise KeyError(name)
        module = importlib.import_module(f"{__name__}.{name}")
        return lambda: replace(module.recipe(), recipe=name)


RECIPES: Mapping[str, Callable[[], TrainConfig]] = _Recipes()


def get_recipe(name: str) -> TrainConfig:
    """The configuration of the recipe `name`, or a `UsageError` with the nearest names."""
    if name not in RECIPES:
        raise UsageError(f"There is no recipe {name!r}{nearest(name, RECIPES)}. The recipes are {', '.join(RECIPES)}.")
    return RECIPES[name]()


def explain(name: str) -> str:
    """The docstring of a recipe, read without importing it."""
    source = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""
