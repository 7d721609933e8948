"""Names of models. A variant is a family's class and the options that make it; baseline and Steps twin differ in their plan alone."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from stepsnet.errors import UsageError, nearest
from stepsnet.models.model import Model


@dataclass(frozen=True)
class Variant:
    name: str
    family: type[Model]
    options: dict[str, Any]


VARIANTS: dict[str, Variant] = {}


def register(family: type[Model], name: str, **options: Any) -> None:
    VARIANTS[name] = Variant(name, family, options)


def list_models(pattern: str = "*") -> list[str]:
    """The registered names that match a shell pattern, as `steps_*`."""
    return sorted(fnmatch.filter(VARIANTS, pattern))


def get_variant(name: str) -> Variant:
    if name not in VARIANTS:
        raise UsageError(f"there is no model '{name}'{nearest(name, VARIANTS)}; `stepsnet models` lists them all")
    return VARIANTS[name]
