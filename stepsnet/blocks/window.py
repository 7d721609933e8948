"""Attention within (shifted) windows of a map, as in Swin (arXiv 2103.14030).

Shapes: B batch, H and W the map, C channels; G windows of N = h × w tokens; maps are (B, H, W, C).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.attention import head_dim
from stepsnet.blocks.layers import linear

APART = -1000.0
"""Added to the scores of tokens that must not see each other. Swin uses -100, but exp(-100) is a denormal number in
fp32, with which CPUs compute many times more slowly; exp(-1000) is zero."""


@dataclass(frozen=True)
class Windows:
    """How a map of H × W is cut into windows of h × w: after a cyclic shift and padding at the end to whole windows.

    A side shorter than the window is one unshifted window.
    """

    H: int
    W: int
    h: int
    w: int
    shift_h: int
    shift_w: int

    @classmethod
    def over(cls, H: int, W: int, window: int, shift: int) -> Windows:
        h, w = min(window, H), min(window, W)
        return cls(H, W, h, w, shift if h < H else 0, shift if w < W else 0)

    @property
    def pad(self) -> tuple[int, int]:
        return -self.H % self.h, -self.W % self.w

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of windows."""
        return (self.H + self.pad[0]) // self.h, (self.W + self.pad[1]) // self.w

    @property
    def shifted(self) -> bool:
        return bool(self.shift_h or self.shift_w)

    def cut(self, x: Tensor) -> Tensor:
        """A map (B, H, W, C) as windows (B·windows, N, C)."""
        if self.shifted:
            x = x.roll((-self.shift_h, -self.shift_w), (1, 2))
        if any(self.pad):
            x = F.pad(x, (0, 0, 0, self.pad[1], 0, self.pad[0]))
        (rows, columns), (B, *_, C) = self.grid, x.shape
        x = x.reshape(B, rows, self.h, columns, self.w, C).transpose(2, 3)
        return x.reshape(B * rows * columns, self.h * self.w, C)

    def put_back(self, x: Tensor) -> Tensor:
        """The inverse of `cut`."""
        (rows, columns), C = self.grid, x.shape[-1]
        x = x.reshape(-1, rows, columns, self.h, self.w, C).transpose(2, 3)
        x = x.reshape(-1, rows * self.h, columns * self.w, C)
        if any(self.pad):
            x = x[:, : self.H, : self.W]
        return x.roll((self.shift_h, self.shift_w), (1, 2)) if self.shifted else x

    def mask(self, device: torch.device) -> Tensor:
        """(windows, 1, N, N): 0 where two tokens of a window were neighbours before the shift, APART elsewhere.

        Tokens that the shift wrapped around an edge share a window only with tokens of the opposite edge: one bit per
        side separates them. On a padded map this is not exact. As in timm, `cut` shifts first and pads then, but the
        mask is that of a padded map that was shifted, so some tokens of opposite edges see each other.
        """
        (rows, columns), h, w = self.grid, self.h, self.w
        wrapped_rows = torch.arange(rows * h, device=device) >= rows * h - self.shift_h
        wrapped_columns = torch.arange(columns * w, device=device) >= columns * w - self.shift_w
        regions = 2 * wrapped_rows.unsqueeze(1) + 1 * wrapped_columns  # numbers, not truth values
        regions = regions.view(rows, h, columns, w).transpose(1, 2).reshape(-1, 1, h * w)
        return (regions.unsqueeze(2) != regions.unsqueeze(3)) * APART


def pairs_apart(h: int, w: int, window: int, device: torch.device) -> Tensor:
    """(N, N): for every pair of tokens of an h × w window, the row of the bias table that belongs to their distance."""
    span = 2 * window - 1
    rows, columns = (torch.arange(side, device=device) for side in (h, w))
    at = (rows.unsqueeze(1) * span + columns).flatten()
    return at.unsqueeze(1) - at + (window - 1) * (span + 1)


class WindowAttention(nn.Module):
    """Attention within windows of `window` × `window` tokens with a learned relative position bias.

    With `shifted` the windows lie half a window further along both sides, wrapped around, and a mask separates tokens
    that were not neighbours before. A side shorter than the window is one unshifted window; other sides are padded to
    a multiple.
    """

    def __init__(self, width: int, heads: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim(width, heads)
        self.window = window
        self.shift = window // 2 if shifted else 0
        self.qkv = linear(width, 3 * width)
        self.proj = linear(width, width)
        self.bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.bias_table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        windows = Windows.over(x.shape[1], x.shape[2], self.window, self.shift)
        x = windows.cut(x)
        G, N, C = x.shape
        q, k, v = self.qkv(x).reshape(G, N, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.position_bias(windows.h, windows.w).unsqueeze(0)
        if windows.shifted:
            rows, columns = windows.grid
            bias = (bias + windows.mask(x.device).to(bias.dtype)).repeat(G // (rows * columns), 1, 1, 1)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        x = x.transpose(1, 2).contiguous()  # for exporters: other kernels return another layout than this CPU's
        return windows.put_back(self.proj(x.reshape(G, N, C)))

    def position_bias(self, h: int, w: int) -> Tensor:
        """(heads, N, N): the bias of every pair of tokens of an h × w window, looked up by their distance."""
        return self.bias_table[pairs_apart(h, w, self.window, self.bias_table.device)].permute(2, 0, 1)
