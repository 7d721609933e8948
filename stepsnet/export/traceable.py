"""Copies of models that can be traced for any size: same weights, same outputs, no size-dependent branch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.attention import TextContext
from stepsnet.blocks.window import APART, WindowAttention
from stepsnet.models import Model
from stepsnet.models.language import Transformer


def traceable(model: Model) -> nn.Module:
    """A copy in evaluation mode that shares the weights. Its trace is valid for other input sizes."""
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}).eval()
    for name, module in list(shared.named_modules()):
        if isinstance(module, WindowAttention):
            shared.set_submodule(name, AnySizeWindowAttention(module))
        elif isinstance(module, nn.Conv2d) and module.groups > 1:  # of maps (B, H, W, C), permuted
            shared.set_submodule(name, AnyLayoutConv(module))
    return AnyLengthTransformer(shared) if isinstance(shared, Transformer) else shared


class AnyLayoutConv(nn.Module):
    """A convolution of a map made contiguous first: PyTorch's own asks for the layout, which depends on the batch
    size."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.clone(memory_format=torch.contiguous_format))


class AnyLengthTransformer(nn.Module):
    """A language model over whole texts: no cache, no padding, every token attends to all before it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        context = TextContext(model.rotary_tables(torch.arange(x.shape[1], device=x.device)), attend=_attend_to_past)
        return model.forward_head(model.norm(model.net(model.embed(x), context)))


def _attend_to_past(_layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, _mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class AnySizeWindowAttention(nn.Module):
    """`WindowAttention` for maps of any size from the window upwards: one gather partitions, shifts and pads; another
    undoes it.

    Legend: B batch, H and W the map, C channels; windows of h × w = N tokens in `rows` and `columns`. A side of exactly
    one window is not shifted; s · min(H − h, 1) gives that without a branch. A map of fixed size may be smaller than
    the window.
    """

    def __init__(self, attention: WindowAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        own = self.attention
        h, w = (min(own.window, side) if _is_fixed(side) else own.window for side in (H, W))
        rows, columns, N = (H + h - 1) // h, (W + w - 1) // w, h * w
        row_shift, column_shift = (own.shift * torch.sym_min(side - window, 1) for side, window in ((H, h), (W, w)))

        # The source of each token of each window; positions outside the map are padding, which is zero.
        row, column = _positions(rows, h, x), _positions(columns, w, x)
        source = _grid(_wrap(row + row_shift, H) * W, _wrap(column + column_shift, W)).flatten()
        x = x.reshape(B, H * W, C).index_select(1, source)
        if not (_is_whole(H, h) and _is_whole(W, w)):
            x = x * _grid(row < H, column < W, torch.logical_and).flatten().unsqueeze(1).to(x.dtype)

        qkv = own.qkv(x).reshape(B * rows * columns, N, 3, own.heads, C // own.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B·windows, heads, N, head_dim)
        # Attention is written out, so that the mask is not repeated for every image.
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + own.position_bias(h, w)
        if own.shift:
            regions = _grid(2 * (row >= rows * h - row_shift), 1 * (column >= columns * w - column_shift)).reshape(
                rows * columns, 1, N
            )
            mask = (regions.unsqueeze(2) != regions.unsqueeze(3)).to(x.dtype) * APART
            scores = (scores.reshape(B, rows * columns, own.heads, N, N) + mask).reshape(
                B * rows * columns, own.heads, N, N
            )
        x = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, rows * columns * N, C)

        # The window position of each token of the map.
        row = _wrap(torch.arange(H, device=x.device) + (H - row_shift), H)
        column = _wrap(torch.arange(W, device=x.device) + (W - column_shift), W)
        target = (row // h * (columns * N) + row % h * w).unsqueeze(1) + (column // w * N + column % w)
        return own.proj(x.index_select(1, target.flatten())).reshape(B, H, W, C)


def _positions(windows: int, window: int, like: Tensor) -> Tensor:
    """(windows, window): positions along one side, padding included."""
    return (torch.arange(windows, device=like.device) * window).unsqueeze(1) + torch.arange(window, device=like.device)


def _is_fixed(side: int | torch.SymInt) -> bool:
    """Whether a side is fixed in the trace."""
    return isinstance(side, int)


def _is_whole(side: int, window: int) -> bool:
    """Whether a side is fixed and divided evenly by the window."""
    return _is_fixed(side) and side % window == 0


def _wrap(position: Tensor, side: int) -> Tensor:
    """Positions modulo the side, for positions below twice the side; larger ones, which are padding, become 0."""
    position = torch.where(position < side, position, position - side)
    return torch.where(position < side, position, 0)


def _grid(row: Tensor, column: Tensor, combine: Callable[[Tensor, Tensor], Tensor] = torch.add) -> Tensor:
    """(rows, columns, h, w) from values along each side."""
    return combine(row[:, None, :, None], column[None, :, None, :])
