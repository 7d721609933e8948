"""Layers and their initialisation, MLPs, patch embedding, patch merging. Maps of tokens are (B, H, W, C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.errors import UsageError


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        start_linear(self)


class _Conv2d(nn.Conv2d):
    def reset_parameters(self) -> None:
        start_conv(self)


def linear(in_features: int, out_features: int, bias: bool = True, **factory: Any) -> nn.Linear:
    """A linear layer with DeiT's and Swin's initialisation. `factory` is device and dtype."""
    layer = _Linear(in_features, out_features, bias, **factory)
    # The plain class, which other tools look for, without its own initialisation first.
    layer.__class__ = nn.Linear  # type: ignore[assignment]
    return layer


def start_linear(layer: nn.Linear) -> None:
    """Weights normal with deviation 0.02, biases zero.

    DeiT and Swin truncate at ±2, a hundred deviations: the distribution is the same without it, and drawing is faster.
    """
    if layer.weight.is_meta:  # nothing to fill, and the meta device is slow at it
        return
    nn.init.normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def start_xavier(layer: nn.Linear) -> None:
    """Glorot's uniform initialisation: keeps the variance, forward and backward; above 0.02 in narrow layers."""
    start_linear(layer)
    nn.init.xavier_uniform_(layer.weight)


INITS: dict[str, Callable[[nn.Linear], None]] = {"own": start_linear, "xavier": start_xavier}
"""How the linear layers of a model start: the papers' way, or another."""


def conv(in_chans: int, out_chans: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias as ResNets have them."""
    layer = _Conv2d(in_chans, out_chans, kernel, stride, padding=kernel // 2, bias=False)
    layer.__class__ = nn.Conv2d  # type: ignore[assignment]
    return layer


def start_conv(layer: nn.Conv2d) -> None:
    """He's normal initialisation over the fan-out."""
    if not layer.weight.is_meta:
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def depthwise(width: int) -> nn.Conv2d:
    """A 3×3 depthwise convolution with bias."""
    return nn.Conv2d(width, width, 3, padding=1, groups=width)


class Mlp(nn.Module):
    """Two linear layers with GELU between them, as in DeiT and Swin."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = linear(width, hidden)
        self.fc2 = linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class ConvMlp(Mlp):
    """CMT's ConvFFN (arXiv 2107.06263): a depthwise convolution with a shortcut inside; maps (B, H, W, C)."""

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


class PatchEmbed(nn.Module):
    """An image (B, in_chans, H, W) as a map of patches (B, H/p, W/p, C); sides are padded to multiples of p."""

    def __init__(self, in_chans: int, width: int, patch: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(in_chans, width, patch, patch)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        check_image(x, self.proj.in_channels, self.patch)
        pad_h, pad_w = -x.shape[2] % self.patch, -x.shape[3] % self.patch
        if pad_h or pad_w:
            x = F.pad(x, (0, pad_w, 0, pad_h))
        x = self.proj(x).permute(0, 2, 3, 1)
        return x if self.norm is None else self.norm(x)


class PatchMerging(nn.Module):
    """Swin's step to half the resolution: four neighbours concatenated, norm, a linear layer to the next width."""

    def __init__(self, in_chans: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_chans)
        self.reduction = linear(4 * in_chans, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _, H, W, _ = x.shape
        if H % 2 or W % 2:
            x = F.pad(x, (0, 0, 0, W % 2, 0, H % 2))
        B, H, W, C = x.shape
        x = x.reshape(B, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 4, 2, 5).reshape(B, H // 2, W // 2, 4 * C)
        return self.reduction(self.norm(x))


def check_image(x: Tensor, in_chans: int, smallest: int) -> None:
    """Refuse a tensor that is not a batch of images this model can take."""
    if x.dim() != 4 or x.shape[1] != in_chans:
        raise UsageError(f"the model takes images of shape (batch, {in_chans}, height, width), got {tuple(x.shape)}")
    if min(x.shape[2:]) < smallest:
        raise UsageError(f"an image of {x.shape[2]}×{x.shape[3]} is smaller than one patch of {smallest}×{smallest}")
