"""Models as a tracer likes them: the same weights and the same numbers, with no decision that depends on the size of the input."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.attention import TextContext
from stepsnet.blocks.linear import DepthwiseConv2d
from stepsnet.blocks.window import APART, WindowAttention
from stepsnet.models import Model
from stepsnet.models.language import Transformer
from stepsnet.models.resnet import ResNet


def traceable(model: Model) -> nn.Module:
    """A copy in evaluation mode, sharing the weights, whose trace holds for other batches, sizes of pictures and lengths of texts."""
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}).eval()
    for name, module in list(shared.named_modules()):
        if isinstance(module, WindowAttention):
            shared.set_submodule(name, AnySizeWindowAttention(module))
        elif isinstance(module, DepthwiseConv2d):
            shared.set_submodule(name, AnyLayoutDepthwise(module))
    if isinstance(shared, ResNet):
        return AnyLayoutResNet(shared)
    return AnyLengthTransformer(shared) if isinstance(shared, Transformer) else shared


class AnyLayoutResNet(nn.Module):
    """A ResNet that leaves the layout of its maps in memory to the runtime: asking for one tells a single picture from several."""

    def __init__(self, model: ResNet) -> None:
        super().__init__()
        self.model = model
        for module in model.modules():
            if isinstance(module, nn.Conv2d):  # a folded one asks for the layout of its weights
                module.weight = nn.Parameter(module.weight.detach().clone(memory_format=torch.contiguous_format))

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        x = model.stem(x)
        for stage in model.stages:
            x = stage(x)
        return model.forward_head(x)


class AnyLayoutDepthwise(nn.Module):
    """A depthwise convolution of a channels-last map that has no layout to ask about either."""

    def __init__(self, conv: DepthwiseConv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
        return F.conv2d(x, self.conv.weight, self.conv.bias, padding=1, groups=self.conv.groups).permute(0, 2, 3, 1)


class AnyLengthTransformer(nn.Module):
    """A language model over whole texts: no cache, no padding, every token looks back at all before it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        context = TextContext(model.rotary_tables(torch.arange(x.shape[1], device=x.device)), attend=_look_back)
        return model.forward_head(model.norm(model.net(model.embed(x), context)))


def _look_back(q: Tensor, k: Tensor, v: Tensor, _mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class AnySizeWindowAttention(nn.Module):
    """`WindowAttention` for maps of any size from the window upwards: partition, shift and padding are one lookup, undoing them another.

    Legend: B batch, H and W the map, C channels; windows of h × w = N tokens in `rows` and `columns`. Where a side is exactly one
    window there is no shift along it, which s · min(H − h, 1) says without asking. A map of known size may be smaller than the window.
    """

    def __init__(self, attention: WindowAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        own = self.attention
        h, w = (min(own.window, side) if _is_known(side) else own.window for side in (H, W))
        rows, columns, N = (H + h - 1) // h, (W + w - 1) // w, h * w
        row_shift, column_shift = (own.shift * torch.sym_min(side - window, 1) for side, window in ((H, h), (W, w)))

        # Where each token of each window comes from; behind the map there is padding, which is zero.
        row, column = _positions(rows, h, x), _positions(columns, w, x)
        source = _grid(_wrap(row + row_shift, H) * W, _wrap(column + column_shift, W)).flatten()
        x = x.reshape(B, H * W, C).index_select(1, source)
        if not (_is_whole(H, h) and _is_whole(W, w)):
            x = x * _grid(row < H, column < W, torch.logical_and).flatten().unsqueeze(1).to(x.dtype)

        qkv = own.qkv(x).reshape(B * rows * columns, N, 3, own.heads, C // own.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B·windows, heads, N, head_dim)
        # Written out, so that the mask need not be repeated for every picture.
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + own.position_bias(h, w)
        if own.shift:
            regions = _grid(2 * (row >= rows * h - row_shift), 1 * (column >= columns * w - column_shift)).reshape(rows * columns, 1, N)
            mask = (regions.unsqueeze(2) != regions.unsqueeze(3)).to(x.dtype) * APART
            scores = (scores.reshape(B, rows * columns, own.heads, N, N) + mask).reshape(B * rows * columns, own.heads, N, N)
        x = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, rows * columns * N, C)

        # Where each token of the map went.
        row = _wrap(torch.arange(H, device=x.device) + (H - row_shift), H)
        column = _wrap(torch.arange(W, device=x.device) + (W - column_shift), W)
        target = (row // h * (columns * N) + row % h * w).unsqueeze(1) + (column // w * N + column % w)
        return own.proj(x.index_select(1, target.flatten())).reshape(B, H, W, C)


def _positions(windows: int, window: int, like: Tensor) -> Tensor:
    """(windows, window): positions along one side, padding included."""
    return (torch.arange(windows, device=like.device) * window).unsqueeze(1) + torch.arange(window, device=like.device)


def _is_known(side: int | torch.SymInt) -> bool:
    """Whether a side is the same in all inputs."""
    return isinstance(side, int)


def _is_whole(side: int, window: int) -> bool:
    """Whether a side is known to be filled by whole windows."""
    return _is_known(side) and side % window == 0


def _wrap(position: Tensor, side: int) -> Tensor:
    """A position that has run at most once around a side; what lies beyond that, behind padding, becomes 0."""
    position = torch.where(position < side, position, position - side)
    return torch.where(position < side, position, 0)


def _grid(row: Tensor, column: Tensor, combine: Callable[[Tensor, Tensor], Tensor] = torch.add) -> Tensor:
    """(rows, columns, h, w) from what holds along each side."""
    return combine(row[:, None, :, None], column[None, :, None, :])
