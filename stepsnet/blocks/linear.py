"""Linear and convolution layers that start as the papers start them, also when a meta-device model is filled later."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear layer with DeiT's and Swin's initialisation: weights normal 0.02, biases zero.

    They truncate at ±2, a hundred deviations: nothing is ever cut, and looking for what to cut takes longer than to draw the numbers.
    """

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def start_xavier(self) -> None:
        """Glorot's uniform initialisation, wider where layers are narrow: the variance of what flows through is kept, forward and back."""
        self.reset_parameters()
        nn.init.xavier_uniform_(self.weight)


INITS: dict[str, Callable[[Linear], None]] = {
    "own": lambda layer: layer.reset_parameters(),  # that of a class of one's own, too
    "xavier": lambda layer: layer.start_xavier(),
}
"""How the linear layers of a model start: the family's own way, or another."""


class Conv2d(nn.Conv2d):
    """A convolution without bias as ResNets have them: He's normal initialisation over the fan-out."""

    def __init__(self, in_chans: int, out_chans: int, kernel: int, stride: int = 1) -> None:
        super().__init__(in_chans, out_chans, kernel, stride, padding=kernel // 2, bias=False)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")


class DepthwiseConv2d(nn.Conv2d):
    """A 3×3 depthwise convolution with bias, taking and giving channels-last maps (B, H, W, C) as the token blocks do."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, padding=1, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
