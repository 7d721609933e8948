"""From a plan to a network of stacks."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from stepsnet.errors import UsageError, nearest
from stepsnet.macro.joins import Join
from stepsnet.macro.network import ReverseStepsNet, StepsNet
from stepsnet.macro.plan import StepPlan

MACROS = ("steps", "reverse")


def build_network(
    plan: StepPlan,
    make_stack: Callable[[int, int], nn.Module],
    *,
    macro: str = "steps",
    join: Join = "plain",
    channel_dim: int = -1,
    expansion: int = 1,
) -> StepsNet | ReverseStepsNet:
    """The network of a plan; `make_stack(width, depth)` makes F_i and is called in the order of execution.

    Plans are always written narrow to wide; the reverse macro walks them from the end. `expansion` is how many channels
    of the stream one unit of plan width stands for (4 in bottleneck ResNets, whose plans count the bottleneck).
    """
    steps = [(width * expansion, depth) for width, depth in zip(plan.widths, plan.depths, strict=True)]
    if macro == "steps":
        return StepsNet([make_stack(width, depth) for width, depth in steps], [width for width, _ in steps], channel_dim, join)
    if macro == "reverse":
        if join != "plain":
            raise UsageError("the reverse design (Eq. 6) has no joins, so join stays 'plain' with macro='reverse'")
        steps.reverse()
        return ReverseStepsNet([make_stack(width, depth) for width, depth in steps], [width for width, _ in steps], channel_dim)
    raise UsageError(f"there is no macro '{macro}'{nearest(str(macro), MACROS)}; known are {', '.join(MACROS)}")
