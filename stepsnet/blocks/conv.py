"""ResNet's two convolutional branches."""

from __future__ import annotations

from torch import Tensor, nn

from stepsnet.accel.conv_kernels import ConvAndNorm
from stepsnet.blocks.linear import Conv2d


class BasicBranch(nn.Module):
    """Two 3×3 convolutions (ResNet-18, -34): `in_chans` to `width`."""

    expansion = 1

    def __init__(self, in_chans: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_chans, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = Conv2d(width, width, 3)
        self.bn2 = ZeroBatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(x))

    def layers(self) -> tuple[ConvAndNorm, ...]:
        """Its convolutions, each with its norm; between them is ReLU."""
        return (self.conv1, self.bn1), (self.conv2, self.bn2)


class BottleneckBranch(nn.Module):
    """1×1, 3×3 (which takes the stride), 1×1 convolutions (ResNet-50): `in_chans` to 4 × `width`."""

    expansion = 4

    def __init__(self, in_chans: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_chans, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = Conv2d(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = Conv2d(width, width * self.expansion, 1)
        self.bn3 = ZeroBatchNorm2d(width * self.expansion)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        x = self.act(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))

    def layers(self) -> tuple[ConvAndNorm, ...]:
        """Its convolutions, each with its norm; between them is ReLU."""
        return (self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)


class ZeroBatchNorm2d(nn.BatchNorm2d):
    """The last batch norm of a branch, whose gain starts at zero: every block begins as its shortcut (arXiv 1706.02677)."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.weight)

