"""How the fresh slice x_i meets y_{i-1} at the beginning of step i."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError, nearest

# (channels of y, channels of x_i, where the channels are) → the module that joins them.
JoinDesign: TypeAlias = Callable[[int, int, int], nn.Module]
Join: TypeAlias = str | nn.Module | JoinDesign


class PlainJoin(nn.Module):
    """[y_{i-1}, x_i], as Eq. 5 has it."""

    def __init__(self, channel_dim: int = -1) -> None:
        super().__init__()
        self.channel_dim = channel_dim

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.cat((y, self.scaled(y, x)), self.channel_dim)

    def scaled(self, y: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002
        """x_i as it stands beside y."""
        return x


class MatchedJoin(PlainJoin):
    """[y_{i-1}, s x_i], with s = RMS(y_{i-1}) / RMS(x_i) at each position.

    By the time of the join y has grown by many residual terms, and the next norm, which divides both by their common
    deviation, would drown x_i: the paper's shortcut degradation once more, at the join. The factor carries no gradient
    and has no parameters; it is computed and applied in fp32 (or wider), and where x_i is zero it stays zero.
    """

    def scaled(self, y: Tensor, x: Tensor) -> Tensor:
        return (x * self.factor(y, x)).to(x.dtype)

    @torch.no_grad()
    def factor(self, y: Tensor, x: Tensor) -> Tensor:
        return self.ratio(y, x)

    def ratio(self, y: Tensor, x: Tensor) -> Tensor:
        y_rms, x_rms = self.rms(y), self.rms(x)
        there = x_rms > 0  # asked twice, so that a gradient finds no division by zero either
        return torch.where(there, y_rms / torch.where(there, x_rms, 1.0), 0.0)

    def rms(self, z: Tensor) -> Tensor:
        wide = torch.promote_types(z.dtype, torch.float32)
        return torch.linalg.vector_norm(z, dim=self.channel_dim, keepdim=True, dtype=wide) / z.shape[self.channel_dim] ** 0.5


class DifferentiableMatchedJoin(MatchedJoin):
    """The matched join with a factor that carries its gradient: y learns through x_i's size, and x_i's own size gets no gradient."""

    def factor(self, y: Tensor, x: Tensor) -> Tensor:
        return self.ratio(y, x)


class GainJoin(PlainJoin):
    """[y_{i-1}, g x_i], with one learned gain g for each slice, starting at 1: Eq. 5 before training."""

    def __init__(self, channel_dim: int = -1) -> None:
        super().__init__(channel_dim)
        self.gain = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)

    def scaled(self, y: Tensor, x: Tensor) -> Tensor:
        return super().scaled(y, x) * self.gain.to(x.dtype)


class MatchedGainJoin(GainJoin, MatchedJoin):
    """[y_{i-1}, g s x_i]: a learned gain that starts matched."""


JOINS: dict[str, type[PlainJoin]] = {
    "plain": PlainJoin,
    "matched": MatchedJoin,
    "matched_grad": DifferentiableMatchedJoin,
    "gain": GainJoin,
    "gain_matched": MatchedGainJoin,
}


def resolve_join(join: Join) -> JoinDesign:
    """What makes the join of each place. A module given as it is serves at every place; a function can make one for each."""
    if isinstance(join, nn.Module):
        return lambda _y_width, _x_width, _channel_dim: join
    if callable(join):
        return join
    name = str(join)
    if name not in JOINS:
        known = f"{', '.join(JOINS)}, a module (y, x) → [y, x], or a function that makes one"
        raise UsageError(f"there is no join '{name}'{nearest(name, JOINS)}; known are {known}")
    return lambda _y_width, _x_width, channel_dim: JOINS[name](channel_dim)
