"""The registered studies by name."""

from __future__ import annotations

import importlib

from stepsnet.errors import UsageError, nearest
from stepsnet.research.studies.study import Study

MODULES = {
    "depth": ("fixed_width", "fixed_flops"),
    "ablations": ("steps", "allocation", "reverse", "stages", "paths", "drops"),
    "demo": ("demo",),
    "causes": ("causes", "rate"),
    "evidence": ("table4_mini", "rivals", "shape", "joins"),
    "images": ("figure1_mini", "table1_mini", "convnet_mini"),
}


def study_names() -> list[str]:
    return sorted(name for names in MODULES.values() for name in names)


def get_study(name: str) -> Study:
    """The study `name`, or a `UsageError` with the nearest names."""
    for module, names in MODULES.items():
        if name in names:
            studies: dict[str, Study] = importlib.import_module(f"stepsnet.research.studies.{module}").STUDIES
            return studies[name]
    known = ", ".join(study_names())
    raise UsageError(f"There is no study {name!r}{nearest(name, study_names())}. The studies are {known}.")
