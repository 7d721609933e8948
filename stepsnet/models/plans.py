"""What `plan=` may be, resolved to one StepPlan a stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from stepsnet.errors import UsageError
from stepsnet.macro.plan import StepPlan

StagePlan: TypeAlias = StepPlan | str | int | None
PlanLike: TypeAlias = StagePlan | Sequence[StagePlan]

# A bare number of steps for a hierarchical network is for its last stages: stepping the first two, which are narrow, "yields
# minimal effect" (Table 11).
STEPPED_STAGES = 2


def resolve_plans(plan: PlanLike, plain: Sequence[StepPlan], round_width: Callable[[float], int]) -> tuple[StepPlan, ...]:
    """One plan per stage from a plan, its string (stages separated by ";"), a number of steps, or a sequence of those; None is plain.

    `plain` is the residual network the numbers of steps are derived from, one single-step plan per stage.
    """
    if isinstance(plan, str) and (";" in plan or plan.strip().isdigit()):
        parts: list[StagePlan] = [int(part) if part.strip().isdigit() else part for part in plan.split(";")]
        plan = parts[0] if len(parts) == 1 else parts
    if plan is None:
        return tuple(plain)
    if isinstance(plan, int):
        first = len(plain) - STEPPED_STAGES if len(plain) > 1 else 0
        plan = [plan if stage >= first else None for stage in range(len(plain))]
    if isinstance(plan, (StepPlan, str)):
        plan = [plan]
    if len(plan) != len(plain):
        stages = "1 stage" if len(plain) == 1 else f"{len(plain)} stages"
        raise UsageError(f"the network has {stages}, the plan {len(plan)}; write one plan a stage, separated by ';'")
    return tuple(_resolve(stage, base, round_width) for stage, base in zip(plan, plain, strict=True))


def _resolve(plan: StagePlan, plain: StepPlan, round_width: Callable[[float], int]) -> StepPlan:
    if plan is None:
        return plain
    if isinstance(plan, int):
        return StepPlan.default(plain.width, plain.blocks, plan, round_width)
    return StepPlan.parse(plan) if isinstance(plan, str) else plan


def format_plans(plans: Sequence[StepPlan]) -> str:
    """The string `resolve_plans` reads back."""
    return "; ".join(map(str, plans))


def check_width(plan: StepPlan, width: int, what: str) -> None:
    if plan.width != width:
        remedy = f"end it with {width}x… ({width}x0 lets the last channels pass)"
        raise UsageError(f"the plan '{plan}' ends at width {plan.width}, but {what} is {width} wide; {remedy}")


def multiple_of(number: int) -> Callable[[float], int]:
    return lambda width: number * round(width / number)
