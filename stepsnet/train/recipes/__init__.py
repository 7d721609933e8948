"""The recipes: each public function of the modules beside this file returns a configuration and documents it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.errors import UsageError, nearest

if TYPE_CHECKING:
    from stepsnet.train.config import TrainConfig


class _Recipes(Mapping[str, "Callable[[], TrainConfig]"]):
    """Recipe functions by name. Listing them parses the files without importing them: `train --help` needs no torch."""

    @cached_property
    def found(self) -> dict[str, tuple[str, str]]:
        """Name → module and docstring."""
        public = {}
        for path in Path(__file__).parent.glob("[!_]*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    public[node.name] = (path.stem, ast.get_docstring(node) or "")
        return dict(sorted(public.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, name: str) -> Callable[[], TrainConfig]:
        module = importlib.import_module(f"{__name__}.{self.found[name][0]}")
        return lambda: replace(getattr(module, name)(), recipe=name)


RECIPES = _Recipes()


def get_recipe(name: str) -> TrainConfig:
    """The configuration of the recipe `name`, or a `UsageError` with the nearest names."""
    if name not in RECIPES:
        raise UsageError(f"There is no recipe {name!r}{nearest(name, RECIPES)}. The recipes are {', '.join(RECIPES)}.")
    return RECIPES[name]()


def explain(name: str) -> str:
    """The docstring of a recipe: what it is, commands, data, time and expected result."""
    return RECIPES.found[name][1]
