"""What the families share in building: pictures' sizes, numbers of heads, and the networks of their stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import nn

from stepsnet.blocks.attention import heads_of_dim
from stepsnet.blocks.designs import ResidualDesign, ResidualLike, resolve_residual
from stepsnet.blocks.residual import Place
from stepsnet.errors import UsageError
from stepsnet.macro import Join, ReverseStepsNet, Stack, StepPlan, StepsNet, build_network

Net: TypeAlias = StepsNet | ReverseStepsNet


@dataclass
class NetBuilder:
    """Builds one stage after the other and hands out places along the whole depth, so that stochastic depth grows through all of it."""

    depth: int
    drop_path_rate: float = 0.0
    join: Join = "plain"
    macro: str = "steps"
    residual: ResidualLike = "plain"
    channel_dim: int = -1
    expansion: int = 1
    taken: int = field(default=0, init=False)
    design: ResidualDesign = field(init=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.drop_path_rate < 1.0:
            raise UsageError(f"drop_path_rate is the chance of a branch to vanish, from 0 to below 1, not {self.drop_path_rate}")
        self.design = resolve_residual(self.residual)

    def place(self, width: int, position: int = 0) -> Place:
        """The next place: drop-path rates grow linearly from the first to the last."""
        index = self.taken
        self.taken += 1
        return Place(width, self.channel_dim, position, index, self.depth, self.drop_path_rate * index / max(self.depth - 1, 1))

    def stage(self, plan: StepPlan, make_block: Callable[[Place], nn.Module]) -> Net:
        """The network of one stage: `make_block(place)` is called along the execution, positions count through the stage."""
        first = self.taken

        def make_stack(width: int, depth: int) -> Stack:
            blocks = [make_block(self.place(width, self.taken - first)) for _ in range(depth)]
            return Stack(blocks, self.design.enter(), self.design.leave()) if blocks else Stack([])

        return build_network(
            plan, make_stack, macro=self.macro, join=self.join, channel_dim=self.channel_dim, expansion=self.expansion
        )


def picture_sides(img_size: int | tuple[int, int], patch_size: int = 1) -> tuple[int, int]:
    """Height and width of the pictures a model is made for."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if min(height, width) < patch_size:
        raise UsageError(f"img_size {height}×{width} is smaller than one patch of {patch_size}×{patch_size}; give a smaller patch_size")
    return height, width


def head_rule(rule: Callable[[int], int], head_dim: int | None) -> Callable[[int], int]:
    """Heads for a width: by the family's rule, or all of the same `head_dim`, which must divide every width then."""
    return rule if head_dim is None else lambda width: heads_of_dim(width, head_dim)
