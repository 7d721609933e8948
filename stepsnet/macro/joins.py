"""Joins: how the new slice x_i is concatenated with y_{i-1} at the start of step i."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError, nearest

# (channels of y, channels of x_i, dimension of the channels) → the module that joins them.
JoinDesign: TypeAlias = Callable[[int, int, int], nn.Module]
Join: TypeAlias = str | nn.Module | JoinDesign


class PlainJoin(nn.Module):
    """[y_{i-1}, x_i], as in Eq. 5."""

    def __init__(self, channel_dim: int = -1) -> None:
        super().__init__()
        self.channel_dim = channel_dim

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.cat((y, self.scaled(y, x)), self.channel_dim)

    def scaled(self, y: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002
        """The x_i to concatenate with y."""
        return x


class MatchedJoin(PlainJoin):
    """[y_{i-1}, s x_i], with s = RMS(y_{i-1}) / RMS(x_i) at each position.

    y has grown by many residual terms before the join. The next norm divides y and x_i by their common deviation, so an
    unscaled x_i would be too small beside y: the paper's shortcut degradation, at the join. The factor has no
    parameters, but a gradient: y also learns through the scale of x_i. It is computed and applied in fp32 or wider.
    Where x_i is zero, it stays zero.
    """

    def scaled(self, y: Tensor, x: Tensor) -> Tensor:
        x_rms = self.rms(x)
        unit = x / torch.where(x_rms > 0, x_rms, 1.0)  # first, because the gradient of RMS(y)/RMS(x) could overflow
        return (unit * self.rms(y)).to(x.dtype)

    def rms(self, z: Tensor) -> Tensor:
        wide = torch.promote_types(z.dtype, torch.float32)
        return (
            torch.linalg.vector_norm(z, dim=self.channel_dim, keepdim=True, dtype=wide)
            / z.shape[self.channel_dim] ** 0.5
        )


JOINS: dict[str, type[PlainJoin]] = {"plain": PlainJoin, "matched_grad": MatchedJoin}
STUDIED = dict.fromkeys(("matched", "unit", "matched_down"), "stepsnet.research.joins")
"""Joins that only studies compare, and the module that holds them: imported when an option or a file names one."""


def resolve_join(join: Join) -> JoinDesign:
    """A function that makes each join. A module is used at every join; a function can make a different one for each."""
    if isinstance(join, nn.Module):
        return lambda _y_width, _x_width, _channel_dim: join
    if callable(join):
        return join
    name = str(join)
    if name not in JOINS | STUDIED:
        raise UsageError(f"there is no join '{name}'{nearest(name, JOINS)}; known are {', '.join(JOINS)}")
    design = JOINS.get(name) or import_module(STUDIED[name]).JOINS[name]
    return lambda _y_width, _x_width, channel_dim: design(channel_dim)
