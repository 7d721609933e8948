"""What a Step by Step Network is (arXiv 2511.14329, Eq. 4 to 6): plans, the two macro networks, and joins.

Names load on first use, so that `StepPlan` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsnet.macro.joins import Join, JoinDesign, MatchedJoin, PlainJoin
    from stepsnet.macro.network import ReverseStepsNet, Stack, StepsNet
    from stepsnet.macro.plan import StepPlan

__all__ = ["Join", "JoinDesign", "MatchedJoin", "PlainJoin", "ReverseStepsNet", "Stack", "StepPlan", "StepsNet"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "plan" if name == "StepPlan" else "joins" if "Join" in name else "network"
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
