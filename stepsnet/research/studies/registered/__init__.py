"""The registered studies: one module each, found by its name. `STUDY` in it is all of it, its docstring what it is about."""

from __future__ import annotations

import importlib
import pkgutil

from stepsnet.errors import UsageError, nearest
from stepsnet.research.studies.study import Study


def study_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get_study(name: str) -> Study:
    """The study `name`, or a `UsageError` with the nearest names."""
    if name not in study_names():
        raise UsageError(f"There is no study {name!r}{nearest(name, study_names())}. The studies are {', '.join(study_names())}.")
    study: Study = importlib.import_module(f"{__name__}.{name}").STUDY
    return study
