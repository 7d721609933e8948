"""Attention within (shifted) windows of a map, as in Swin (arXiv 2103.14030).

Shapes: B batch, H and W the map, C channels; windows of N = h × w tokens, `windows` of them in a map; maps are (B, H, W, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.accel import kernels
from stepsnet.blocks.attention import head_dim
from stepsnet.blocks.linear import Linear

APART = -1000.0
"""Added to the scores of tokens that must not see each other. Swin has -100, but exp(-100) is a denormal number in fp32, with which
processors compute many times more slowly; exp(-1000) is zero."""


@dataclass(frozen=True)
class Windows:
    """How a map of H × W is cut: windows of h × w, after a shift that wraps around, and then padding at the end to whole windows.

    A side shorter than the window becomes the window there, unshifted.
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
        return x.view(B, rows, self.h, columns, self.w, C).transpose(2, 3).reshape(B * rows * columns, self.h * self.w, C)

    def put_back(self, x: Tensor) -> Tensor:
        """The way back."""
        (rows, columns), C = self.grid, x.shape[-1]
        x = x.view(-1, rows, columns, self.h, self.w, C).transpose(2, 3).reshape(-1, rows * self.h, columns * self.w, C)
        if any(self.pad):
            x = x[:, : self.H, : self.W]
        return x.roll((self.shift_h, self.shift_w), (1, 2)) if self.shifted else x

    def mask(self, device: torch.device) -> Tensor:
        """(windows, 1, N, N): 0 where two tokens of a shifted window were neighbours before the shift, APART where they were not.

        What the shift moved around the edge shares a window only with what was at the other edge, so that two sides tell them apart.
        """
        (rows, columns), h, w = self.grid, self.h, self.w
        around_rows = torch.arange(rows * h, device=device) >= rows * h - self.shift_h
        around_columns = torch.arange(columns * w, device=device) >= columns * w - self.shift_w
        regions = 2 * around_rows.unsqueeze(1) + 1 * around_columns  # numbers, not truth values
        regions = regions.view(rows, h, columns, w).transpose(1, 2).reshape(-1, 1, h * w)
        return (regions.unsqueeze(2) != regions.unsqueeze(3)) * APART


def pairs_apart(h: int, w: int, window: int, device: torch.device) -> Tensor:
    """(N, N): the row of a bias table for windows of `window` that tells how far apart two tokens of an h × w window are."""
    span = 2 * window - 1
    rows, columns = (torch.arange(side, device=device) for side in (h, w))
    at = (rows.unsqueeze(1) * span + columns).flatten()
    return at.unsqueeze(1) - at + (window - 1) * (span + 1)


@dataclass(frozen=True)
class Tables:
    """What the windows of one size of map look up in eager mode: the order of their tokens and the way back, the pairs, the mask."""

    order: Tensor
    back: Tensor
    apart: Tensor
    mask: Tensor | None


@lru_cache(maxsize=64)
def tables_of(windows: Windows, window: int) -> Tables:
    """On the CPU, and outside of the modules: models are copied, saved and made on the meta device without them."""
    cpu = torch.device("cpu")
    with torch.inference_mode(False):  # tables made during inference serve in training too
        # Tokens are counted from one, as F.pad fills with zeros; what is padding points behind the last token then.
        tokens = windows.H * windows.W
        numbers = torch.arange(1, tokens + 1, device=cpu).view(1, windows.H, windows.W, 1)
        order = (windows.cut(numbers).flatten() - 1) % (tokens + 1)
        back = order.argsort()[:tokens]
        mask = windows.mask(cpu) if windows.shifted else None
        return Tables(order, back, pairs_apart(windows.h, windows.w, window, cpu), mask)


class WindowAttention(nn.Module):
    """Attention within windows of `window` × `window` tokens with a learned relative position bias.

    With `shifted` the windows lie half a window further along both sides, wrapped around, and a mask keeps apart what was not
    adjacent before. A side shorter than the window becomes the window there, unshifted; other sides are padded to a multiple.
    """

    def __init__(self, width: int, heads: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim(width, heads)
        self.window = window
        self.shift = window // 2 if shifted else 0
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)
        self.bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.bias_table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        windows = Windows.over(x.shape[1], x.shape[2], self.window, self.shift)
        if not kernels.applies(x):
            return self.readable(x, windows)
        if kernels.learns(x, *self.parameters()) or not (kernels.untouched(self.qkv) and kernels.untouched(self.proj)):
            return self.in_eager_mode(x, windows)  # whoever watches a layer sees all maps at once
        maps = max(kernels.PIECE_BYTES // (3 * x.shape[1:].numel() * x.itemsize), 1)
        pieces = [self.in_eager_mode(piece, windows) for piece in x.split(maps)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def readable(self, x: Tensor, windows: Windows) -> Tensor:
        """What the layer computes, step by step; compiled and exported models run this."""
        x = windows.cut(x)
        G, N, C = x.shape
        q, k, v = self.qkv(x).view(G, N, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.position_bias(windows.h, windows.w).unsqueeze(0)
        if windows.shifted:
            rows, columns = windows.grid
            bias = (bias + windows.mask(x.device).to(bias.dtype)).repeat(G // (rows * columns), 1, 1, 1)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return windows.put_back(self.proj(x.transpose(1, 2).reshape(G, N, C)))

    def in_eager_mode(self, x: Tensor, windows: Windows) -> Tensor:
        """The same with one copy of the map in each direction, tables that stay, and attention in pieces that fit the cache."""
        tables = tables_of(windows, self.window)
        B, H, W, C = x.shape
        N = windows.h * windows.w
        x = kernels.reorder(x.reshape(B, H * W, C), tables.order, tables.back)
        bias = self.bias_table[tables.apart].permute(2, 0, 1).unsqueeze(0)
        if tables.mask is not None:
            bias = bias + tables.mask.to(bias.dtype)
        x = kernels.biased_attention(self.qkv(x).view(-1, N, 3, self.heads, self.head_dim), bias)
        return kernels.reorder(self.proj(x).view(B, len(tables.order), C), tables.back, tables.order).view(B, H, W, C)

    def position_bias(self, h: int, w: int) -> Tensor:
        """(heads, N, N): the table's entry for every pair of tokens of an h × w window, looked up by how far apart they are."""
        return self.bias_table[pairs_apart(h, w, self.window, self.bias_table.device)].permute(2, 0, 1)
