"""Swin++ and Steps-Swin++ (Sec. 5.2): Swin with two parts of CMT (arXiv 2107.06263).

A 3×3 depthwise convolution with its own shortcut (the local perception unit) comes before attention, and the MLP
contains another (ConvFFN). The paper prints no sizes for these models.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from stepsnet.blocks.designs import ResidualPart
from stepsnet.blocks.layers import ConvMlp, depthwise
from stepsnet.blocks.residual import Place
from stepsnet.models import swin


class Block(swin.Block):
    """Local perception, window attention, ConvFFN."""

    make_mlp = ConvMlp

    def __init__(self, place: Place, heads: int, window: int, residual: ResidualPart) -> None:
        super().__init__(place, heads, window, residual)
        self.local = residual(None, depthwise(place.width), replace(place, channel_dim=1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.local(x.movedim(-1, -3)).movedim(-3, -1))


class SwinPlus(swin.Swin):
    family = "swinpp"
    block = Block


swin.register_sizes(SwinPlus, "swinpp")
