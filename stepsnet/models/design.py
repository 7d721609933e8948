"""Design: plan, join, macro, residual design and stochastic depth of a model. StageBuilder makes networks from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TypeAlias

from torch import nn

from stepsnet.blocks.attention import heads_of_dim
from stepsnet.blocks.designs import ResidualLike, resolve_residual
from stepsnet.blocks.residual import Place
from stepsnet.errors import UsageError, nearest
from stepsnet.macro import Join, ReverseStepsNet, StepPlan, StepsNet

StagePlan: TypeAlias = StepPlan | str | int | None
PlanLike: TypeAlias = StagePlan | Sequence[StagePlan]
Net: TypeAlias = StepsNet | ReverseStepsNet

MACROS = ("steps", "reverse", "waist")
# A number of steps for a hierarchical network applies to its last stages: stepping the first two, which are narrow,
# "yields minimal effect" (Table 11).
STEPPED_STAGES = 2
LARGEST_SIDE = 1 << 16  # beyond it the sizes of tensors overflow


@dataclass(frozen=True)
class Design:
    """What may differ between a residual network and its Steps versions.

    `plan` is one plan per stage, in any form that `resolve_plans` takes. `macro` is "steps" (Eq. 5), "reverse" (Eq. 6)
    or "waist" (only studies). `drop_path` is the drop rate of the last block's branches; rates grow linearly from 0 at
    the first block.
    """

    plan: PlanLike = None
    join: Join = "plain"
    macro: str = "steps"
    residual: ResidualLike = "plain"
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        if self.macro not in MACROS:
            known = ", ".join(MACROS)
            raise UsageError(f"there is no macro '{self.macro}'{nearest(str(self.macro), MACROS)}; known are {known}")
        if self.macro == "reverse" and self.join != "plain":
            raise UsageError("the reverse design (Eq. 6) has no joins, so join stays 'plain' with macro='reverse'")
        if not 0.0 <= self.drop_path < 1.0:
            raise UsageError(
                f"drop_path_rate is the probability that a branch is dropped, from 0 to below 1, not {self.drop_path}"
            )

    def plans(self, plain: Sequence[StepPlan], round_width: Callable[[float], int]) -> tuple[StepPlan, ...]:
        """One plan per stage. `plain` is the residual network: one step per stage."""
        return resolve_plans(self.plan, plain, round_width)


PLAIN = Design()


class StageBuilder:
    """Builds the networks of a model's stages. Blocks are numbered through all stages; drop-path rates grow with them.

    `depth` is the number of all blocks. `expansion` is the number of channels for one unit of plan width (4 in
    bottleneck ResNets, whose plans give the width of the bottleneck). `residual` makes the residual branches of a
    block.
    """

    def __init__(self, design: Design, depth: int, channel_dim: int = -1, expansion: int = 1) -> None:
        self.design, self.depth, self.channel_dim, self.expansion = design, depth, channel_dim, expansion
        found = resolve_residual(design.residual)
        self.residual, self._make_stack = found.part, found.stack
        self._blocks = 0

    def place(self, width: int, position: int = 0) -> Place:
        """The place of the next block."""
        index = self._blocks
        self._blocks += 1
        rate = self.design.drop_path * index / max(self.depth - 1, 1)
        return Place(width, self.channel_dim, position, index, self.depth, rate)

    def stage(self, plan: StepPlan, make_block: Callable[[Place], nn.Module]) -> Net:
        """The network of one stage; `make_block(place)` is called in the order of execution."""
        plan = replace(plan, widths=tuple(width * self.expansion for width in plan.widths))

        def make(width: int, index: int) -> nn.Module:
            return make_block(self.place(width, index))

        if self.design.macro == "waist":  # only a study has it
            waist = import_module("stepsnet.research.joins").waist
            return waist(make, plan, self.channel_dim, self._make_stack)
        if self.design.macro == "reverse":
            return ReverseStepsNet.from_blocks(make, plan, channel_dim=self.channel_dim, make_stack=self._make_stack)
        return StepsNet.from_blocks(
            make, plan, channel_dim=self.channel_dim, join=self.design.join, make_stack=self._make_stack
        )


def resolve_plans(
    plan: PlanLike, plain: Sequence[StepPlan], round_width: Callable[[float], int], *, any_order: bool = False
) -> tuple[StepPlan, ...]:
    """One plan per stage, from a plan, its text (stages separated by ";"), a number of steps, or a sequence of these.

    None is `plain`, the residual network. Numbers of steps are derived from it. `any_order`: see StepPlan.
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
        raise UsageError(f"the network has {stages}, the plan {len(plan)}; write one plan per stage, separated by ';'")
    return tuple(_resolve(stage, base, round_width, any_order) for stage, base in zip(plan, plain, strict=True))


def _resolve(plan: StagePlan, plain: StepPlan, round_width: Callable[[float], int], any_order: bool) -> StepPlan:
    if plan is None:
        return plain
    if isinstance(plan, int):
        return StepPlan.default(plain.width, plain.blocks, plan, round_width)
    return StepPlan.parse(plan, any_order=any_order) if isinstance(plan, str) else plan


def format_plans(plans: Sequence[StepPlan]) -> str:
    """The string that `resolve_plans` reads."""
    return "; ".join(map(str, plans))


def has_steps(plan: str) -> bool:
    """Whether a stage of a plan in text form has several steps; without, there are no joins and no direction."""
    return "," in plan


def check_width(plan: StepPlan, width: int, what: str) -> None:
    if plan.width != width:
        remedy = f"end it with {width}x… ({width}x0 lets the last channels pass)"
        raise UsageError(f"the plan '{plan}' ends at width {plan.width}, but {what} is {width} wide; {remedy}")


def multiple_of(number: int) -> Callable[[float], int]:
    return lambda width: number * round(width / number)


def image_sides(img_size: int | tuple[int, int], patch_size: int = 1) -> tuple[int, int]:
    """Height and width of the images a model is made for."""
    sides = tuple(img_size) if isinstance(img_size, (tuple, list)) else (img_size, img_size)
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise UsageError(f"img_size is {img_size!r}, but must be a number of pixels or two")
    height, width = sides
    if max(height, width) > LARGEST_SIDE:
        raise UsageError(f"img_size {height}×{width} is too large; the largest side is {LARGEST_SIDE:,} pixels")
    if min(height, width) < patch_size:
        patch = f"one patch of {patch_size}×{patch_size}"
        raise UsageError(f"img_size {height}×{width} is smaller than {patch}; give a smaller patch_size")
    return height, width


def head_rule(rule: Callable[[int], int], head_dim: int | None) -> Callable[[int], int]:
    """The number of heads for a width: by the family's rule, or with `head_dim` channels each."""
    return rule if head_dim is None else lambda width: heads_of_dim(width, head_dim)
