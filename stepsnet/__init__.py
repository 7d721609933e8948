"""StepsNet: a residual network of one width becomes several of growing width, joined along channels.

The public names load on first use (PEP 562), so that `import stepsnet` and `stepsnet --help` cost nothing. The import
does one thing: where a virtual machine announces AMX but hides its tiles, it keeps PyTorch from crashing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stepsnet.cpu import avoid_amx_crash

if TYPE_CHECKING:
    from stepsnet import analysis
    from stepsnet.errors import UsageError
    from stepsnet.integrations.pretrained import load_pretrained
    from stepsnet.macro import ReverseStepsNet, StepPlan, StepsNet
    from stepsnet.models import (
        compile_blocks,
        cost_of,
        create_model,
        fold,
        freeze,
        list_models,
        load_model,
        memory_of,
        save_model,
    )
    from stepsnet.surgery.deepen import deepen, freeze_old, undeepen
    from stepsnet.surgery.planning import plan
    from stepsnet.surgery.report import surgery_report
    from stepsnet.surgery.stepify import stepify

__version__ = "0.1.0"

__all__ = [
    "ReverseStepsNet",
    "StepPlan",
    "StepsNet",
    "UsageError",
    "__version__",
    "analysis",
    "compile_blocks",
    "cost_of",
    "create_model",
    "deepen",
    "fold",
    "freeze",
    "freeze_old",
    "list_models",
    "load_model",
    "load_pretrained",
    "memory_of",
    "plan",
    "save_model",
    "stepify",
    "surgery_report",
    "undeepen",
]

_HOMES = {
    "ReverseStepsNet": "stepsnet.macro",
    "StepPlan": "stepsnet.macro",
    "StepsNet": "stepsnet.macro",
    "UsageError": "stepsnet.errors",
    "analysis": "stepsnet.analysis",
    "compile_blocks": "stepsnet.models",
    "cost_of": "stepsnet.models",
    "create_model": "stepsnet.models",
    "deepen": "stepsnet.surgery",
    "freeze_old": "stepsnet.surgery",
    "fold": "stepsnet.models",
    "freeze": "stepsnet.models",
    "list_models": "stepsnet.models",
    "load_model": "stepsnet.models",
    "load_pretrained": "stepsnet.integrations.pretrained",
    "memory_of": "stepsnet.models",
    "plan": "stepsnet.surgery.planning",
    "save_model": "stepsnet.models",
    "stepify": "stepsnet.surgery",
    "surgery_report": "stepsnet.surgery",
    "undeepen": "stepsnet.surgery",
}

avoid_amx_crash()

if not TYPE_CHECKING:  # a type checker sees the imports above instead, and can tell a public name from a misspelt one

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'stepsnet' has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name])
        value = home if home.__name__ == f"stepsnet.{name}" else getattr(home, name)
        globals()[name] = value  # the next access finds it without coming here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
