"""Swin++ and Steps-Swin++: Swin's macro design, with the micro parts of CMT (arXiv 2107.06263) that the paper adds to it (Sec. 5.2).

A 3×3 depthwise convolution with its own shortcut (the local perception unit) goes before attention, and the MLP has another inside (ConvFFN).
The paper prints no sizes for these models; ours are our own counts.
"""

from __future__ import annotations

from torch import Tensor, nn

from stepsnet.blocks.linear import DepthwiseConv2d
from stepsnet.blocks.mlp import ConvMlp
from stepsnet.blocks.residual import Place, Residual
from stepsnet.cost import Cost, formulas
from stepsnet.families import swin
from stepsnet.families.model import ResidualDesign


class Block(swin.Block):
    """Local perception, window attention, ConvFFN."""

    def __init__(self, place: Place, window: int, residual: ResidualDesign = Residual) -> None:
        super().__init__(place, window, residual)
        width = place.width
        self.local = residual(nn.Identity(), DepthwiseConv2d(width), place)
        self.mlp = residual(nn.LayerNorm(width), ConvMlp(width, 4 * width), place)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(self.local(x)))

    @staticmethod
    def closed_form(width: int, side: tuple[int, int], window: int) -> Cost:
        pixels = side[0] * side[1]
        return (
            swin.Block.closed_form(width, side, window)
            + formulas.conv(width, width, 3, pixels, groups=width, bias=True)
            + formulas.conv(4 * width, 4 * width, 3, pixels, groups=4 * width, bias=True)
        )


class SwinPlus(swin.Swin):
    family = "swinpp"
    block = Block


swin.register_sizes(SwinPlus, "swinpp")
