"""Joins with a learned gain: compared in the join study, and selected by name as any other join."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepsnet.macro.joins import MatchedJoin, PlainJoin


class GainJoin(PlainJoin):
    """[y_{i-1}, g x_i], with one learned gain g per join that starts at 1: Eq. 5 before training."""

    def __init__(self, channel_dim: int = -1) -> None:
        super().__init__(channel_dim)
        self.gain = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)

    def scaled(self, y: Tensor, x: Tensor) -> Tensor:
        return super().scaled(y, x) * self.gain.to(x.dtype)


class MatchedGainJoin(GainJoin, MatchedJoin):
    """[y_{i-1}, g s x_i]: a learned gain on top of the matched join."""


JOINS: dict[str, type[PlainJoin]] = {"gain": GainJoin, "gain_matched": MatchedGainJoin}
