"""Attention within (shifted) windows of a map, as in Swin (arXiv 2103.14030).

Shapes: B batch, H and W the map, C channels; windows of N = h × w tokens, `windows` of them in a map; maps are (B, H, W, C).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.attention import head_dim
from stepsnet.blocks.linear import Linear


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
        B, H, W, C = x.shape
        h, w = min(self.window, H), min(self.window, W)
        shift_h, shift_w = (self.shift if h < H else 0), (self.shift if w < W else 0)
        if shift_h or shift_w:
            x = x.roll((-shift_h, -shift_w), (1, 2))
        pad_h, pad_w = -H % h, -W % w
        if pad_h or pad_w:
            x = F.pad(x, (0, 0, 0, pad_w, 0, pad_h))
        rows, columns = (H + pad_h) // h, (W + pad_w) // w
        windows, N = rows * columns, h * w

        x = x.view(B, rows, h, columns, w, C).transpose(2, 3).reshape(B * windows, N, C)
        q, k, v = self.qkv(x).view(B * windows, N, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.position_bias(h, w).unsqueeze(0)
        if shift_h or shift_w:
            bias = (bias + shift_mask(H + pad_h, W + pad_w, h, w, shift_h, shift_w, x)).repeat(B, 1, 1, 1)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.proj(x.transpose(1, 2).reshape(B * windows, N, C))

        x = x.view(B, rows, columns, h, w, C).transpose(2, 3).reshape(B, H + pad_h, W + pad_w, C)
        if pad_h or pad_w:
            x = x[:, :H, :W]
        if shift_h or shift_w:
            x = x.roll((shift_h, shift_w), (1, 2))
        return x

    def position_bias(self, h: int, w: int) -> Tensor:
        """(heads, N, N): the table's entry for every pair of tokens of an h × w window, looked up by how far apart they are."""
        span = 2 * self.window - 1
        rows, columns = (torch.arange(side, device=self.bias_table.device) for side in (h, w))
        at = (rows.unsqueeze(1) * span + columns).flatten()
        apart = at.unsqueeze(1) - at + (self.window - 1) * (span + 1)
        return self.bias_table[apart].permute(2, 0, 1)


def shift_mask(H: int, W: int, h: int, w: int, shift_h: int, shift_w: int, like: Tensor) -> Tensor:
    """(windows, 1, N, N): 0 where two tokens of a shifted window were neighbours before the shift, -100 where they were not.

    What the shift moved around the edge shares a window only with what was at the other edge, so that two sides tell them apart.
    """
    rows = torch.arange(H, device=like.device) >= H - shift_h
    columns = torch.arange(W, device=like.device) >= W - shift_w
    regions = 2 * rows.unsqueeze(1) + 1 * columns  # numbers, not truth values
    regions = regions.view(H // h, h, W // w, w).transpose(1, 2).reshape(-1, 1, h * w)
    apart = regions.unsqueeze(2) != regions.unsqueeze(3)
    return apart.to(like.dtype) * -100.0
