"""ResNet's two convolutional branches. Maps are (B, C, H, W)."""

from __future__ import annotations

from torch import Tensor, nn

from stepsnet.blocks.layers import conv


class BasicBranch(nn.Module):
    """Two 3×3 convolutions (ResNet-18, -34): `in_chans` to `width`."""

    expansion = 1

    def __init__(self, in_chans: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv(in_chans, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.start_at_zero()

    def start_at_zero(self) -> None:
        """The last gain starts at zero, so that every block begins as its shortcut (arXiv 1706.02677)."""
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(x))


class BottleneckBranch(nn.Module):
    """1×1, 3×3 (which takes the stride), 1×1 convolutions (ResNet-50): `in_chans` to 4 × `width`."""

    expansion = 4

    def __init__(self, in_chans: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv(in_chans, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.act = nn.ReLU(inplace=True)
        self.start_at_zero()

    def start_at_zero(self) -> None:
        """The last gain starts at zero, so that every block begins as its shortcut (arXiv 1706.02677)."""
        nn.init.zeros_(self.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        x = self.act(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))
