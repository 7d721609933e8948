"""Designs that only studies compare, selected by name as any other: three joins, and the macro design "waist"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.macro import StepPlan, StepsNet
from stepsnet.macro.joins import MatchedJoin, PlainJoin
from stepsnet.macro.network import MakeBlock, MakeStack


class DetachedMatchedJoin(MatchedJoin):
    """The matched join with a factor that has no gradient."""

    @torch.no_grad()
    def rms(self, z: Tensor) -> Tensor:
        return super().rms(z)


class UnitJoin(MatchedJoin):
    """[y_{i-1} / RMS(y_{i-1}), x_i / RMS(x_i)]: both of size 1."""

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.cat([(z / self.rms(z).clamp_min(1e-12)).to(z.dtype) for z in (y, x)], self.channel_dim)


class MatchedDownJoin(DetachedMatchedJoin):
    """[y_{i-1} / s, x_i] with the matched join's s: y is scaled to the size of x_i, by a factor without gradient."""

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.cat((self.scaled(x, y), x), self.channel_dim)


JOINS: dict[str, type[PlainJoin]] = {
    "matched": DetachedMatchedJoin, "unit": UnitJoin, "matched_down": MatchedDownJoin,
}  # fmt: skip


class Narrowed(nn.Module):
    """A block on the first channels of a wider state; the others wait."""

    def __init__(self, block: nn.Module, width: int, channel_dim: int) -> None:
        super().__init__()
        self.block, self.width, self.channel_dim = block, width, channel_dim

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        waiting = x.shape[self.channel_dim] - self.width
        y, rest = x.split((self.width, waiting), self.channel_dim)
        return torch.cat((self.block(y.contiguous(), *args, **kwargs), rest), self.channel_dim)


def waist(make_block: MakeBlock, plan: StepPlan, channel_dim: int, make_stack: MakeStack) -> StepsNet:
    """Wide, narrow, wide (as in arXiv 2606.18246) with the blocks and the cost of a growing plan.

    Half of the blocks of each wider step are before the narrowest step, the others after it, in one stack.
    """
    first, *wider = zip(plan.widths, plan.depths, strict=True)
    down = [(width, (depth + 1) // 2) for width, depth in reversed(wider)]
    up = [(width, depth // 2) for width, depth in wider]
    widths = [width for width, depth in (*down, first, *up) for _ in range(depth)]
    blocks = (Narrowed(make_block(width, index), width, channel_dim) for index, width in enumerate(widths))
    return StepsNet([make_stack(blocks)], [plan.width], channel_dim)
