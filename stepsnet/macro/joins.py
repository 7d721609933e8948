"""How the fresh slice x_i meets y_{i-1} at the beginning of step i."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError, nearest


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
    and has no parameters; it is computed in fp32, and where x_i is zero it stays zero.
    """

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            y_power = y.float().square().mean(self.channel_dim, keepdim=True)
            x_power = x.float().square().mean(self.channel_dim, keepdim=True)
            # The tiny floor only matters for x = 0, whose product is zero whatever the factor.
            factor = (y_power / x_power.clamp_min(torch.finfo(torch.float32).tiny)).sqrt()
            factor = torch.where(x_power > 0, factor, 0.0).to(x.dtype)
        return super().forward(y, x * factor)


JOINS: dict[str, type[PlainJoin]] = {"plain": PlainJoin, "matched": MatchedJoin}


def make_join(join: str | nn.Module, channel_dim: int) -> nn.Module:
    if isinstance(join, nn.Module):
        return join
    if join not in JOINS:
        raise UsageError(f"there is no join '{join}' (known: {', '.join(JOINS)}, or a module taking y and x{nearest(join, JOINS)})")
    return JOINS[join](channel_dim)
