"""The feed-forward half of a Transformer block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.layers import depthwise, linear


class Mlp(nn.Module):
    """Two linear layers with GELU between them, as in DeiT and Swin."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = linear(width, hidden)
        self.fc2 = linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class ConvMlp(Mlp):
    """CMT's ConvFFN (arXiv 2107.06263) for maps (B, H, W, C): a depthwise convolution with its own shortcut between the two layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.conv = depthwise(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.fc1(x))
        return self.fc2(x + self.conv(x.movedim(-1, -3)).movedim(-3, -1))


class SwiGLU(nn.Module):
    """LLaMA's gated feed-forward without biases; a hidden width of 8C/3 makes it 8C² weights like the plain one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = round(8 * width / 3)
        self.gate_up = linear(width, 2 * hidden, bias=False)
        self.down = linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
