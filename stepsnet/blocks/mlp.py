"""The feed-forward half of a Transformer block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.accel import kernels
from stepsnet.blocks.linear import DepthwiseConv2d, Linear


class Mlp(nn.Module):
    """Two linear layers with GELU between, as in DeiT and Swin."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = Linear(width, hidden)
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        if kernels.applies(x, self.fc1, self.fc2):
            return kernels.mlp(x, self.fc1, self.fc2)
        return self.fc2(F.gelu(self.fc1(x)))


class ConvMlp(Mlp):
    """CMT's ConvFFN (arXiv 2107.06263): a 3×3 depthwise convolution with its own shortcut between the two layers; maps are (B, H, W, C)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.conv = DepthwiseConv2d(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.fc1(x))
        return self.fc2(x + self.conv(x))


class SwiGLU(nn.Module):
    """LLaMA's gated feed-forward without biases; a hidden width of 8C/3 makes it 8C² weights like the plain one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = round(8 * width / 3)
        self.gate_up = Linear(width, 2 * hidden, bias=False)
        self.down = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
