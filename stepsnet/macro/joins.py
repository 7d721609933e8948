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
        return torch.cat((y, x), self.channel_dim)


class MatchedJoin(PlainJoin):
    """[y_{i-1}, s x_i], with s = RMS(y_{i-1}) / RMS(x_i) at each position.

    By the time of the join y has grown by many residual terms, and the next norm, which divides both by their common
    deviation, would drown x_i: the paper's shortcut degradation once more, at the join. The factor carries no gradient
    and has no parameters; it is computed and applied in fp32 (or wider), and where x_i is zero it stays zero.
    """

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return super().forward(y, (x * self.factor(y, x)).to(x.dtype))

    @torch.no_grad()
    def factor(self, y: Tensor, x: Tensor) -> Tensor:
        y_rms, x_rms = self.rms(y), self.rms(x)
        return torch.where(x_rms > 0, y_rms / x_rms, 0.0)

    def rms(self, z: Tensor) -> Tensor:
        wide = torch.promote_types(z.dtype, torch.float32)
        return torch.linalg.vector_norm(z, dim=self.channel_dim, keepdim=True, dtype=wide) / z.shape[self.channel_dim] ** 0.5


JOINS: dict[str, type[PlainJoin]] = {"plain": PlainJoin, "matched": MatchedJoin}


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
