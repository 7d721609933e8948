"""From pictures to tokens, and from one resolution to the next. Maps are (B, H, W, C)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.linear import Linear
from stepsnet.errors import UsageError


class PatchEmbed(nn.Module):
    """A picture (B, in_chans, H, W) as a map of patches (B, H/p, W/p, C); sides that p does not divide are padded at their end."""

    def __init__(self, in_chans: int, width: int, patch: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(in_chans, width, patch, patch)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        check_picture(x, self.proj.in_channels, self.patch)
        pad_h, pad_w = -x.shape[2] % self.patch, -x.shape[3] % self.patch
        if pad_h or pad_w:
            x = F.pad(x, (0, pad_w, 0, pad_h))
        x = self.proj(x).permute(0, 2, 3, 1)
        return x if self.norm is None else self.norm(x)


class PatchMerging(nn.Module):
    """Swin's step to half the resolution: four neighbours side by side, norm, then a linear layer to the next stage's width."""

    def __init__(self, in_chans: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_chans)
        self.reduction = Linear(4 * in_chans, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _, H, W, _ = x.shape
        if H % 2 or W % 2:
            x = F.pad(x, (0, 0, 0, W % 2, 0, H % 2))
        B, H, W, C = x.shape
        x = x.view(B, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 4, 2, 5).reshape(B, H // 2, W // 2, 4 * C)
        return self.reduction(self.norm(x))


def check_picture(x: Tensor, in_chans: int, smallest: int) -> None:
    """One sentence for a tensor that is no batch of pictures this model can take."""
    if x.dim() != 4 or x.shape[1] != in_chans:
        raise UsageError(f"the model takes pictures of shape (batch, {in_chans}, height, width), got {tuple(x.shape)}")
    if min(x.shape[2:]) < smallest:
        raise UsageError(f"a picture of {x.shape[2]}×{x.shape[3]} is smaller than one patch of {smallest}×{smallest}")
