"""Hand-written forward and backward passes for eager mode on a CPU, each beside the readable code that it stands in for.

On a CPU eager mode loses its time outside the matrix products: fresh memory for every intermediate result, and passes over tensors that
have left the cache. So the functions here work piece by piece within small buffers that are used again, and keep for the backward pass
only what is dear to compute twice. `applies` says where they may stand in; compiled and exported models always take the readable code.

Shapes: R rows (tokens), C channels, F hidden channels; G windows of N tokens, H heads of D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as module_hooks

from stepsnet.blocks.linear import Linear

PIECE_BYTES = 8 * 2**20
"""The largest intermediate result of a piece: small enough for the cache, large enough for matrix products at full speed."""
ORDINARY = (Tensor, nn.Parameter)
"""Not the fake, distributed or quantised tensors that only look like these."""


def applies(x: Tensor, *layers: nn.Module) -> bool:
    """Whether `x` is an ordinary fp32 (or wider) tensor on a CPU in eager mode, and nobody watches or has replaced the layers inside."""
    return (
        type(x) in ORDINARY
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0  # derivatives in forward mode need the readable code
        and all(untouched(layer) and layer.weight.dtype is x.dtype for layer in layers)
    )


def watched(module: nn.Module) -> bool:
    """Whether somebody sees what goes in or comes out of it, or of all modules, or has replaced the way it computes."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module) or module_hooks._has_any_global_hook()


def untouched(layer: nn.Module) -> bool:
    """Whether nobody watches or has replaced this linear layer, or its weights, or the way it computes."""
    if type(layer) is not Linear or watched(layer):
        return False
    return type(layer.weight) in ORDINARY and type(layer.bias) in ORDINARY


def learns(*tensors: Tensor) -> bool:
    """Whether there will be a backward pass through what is made of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def mlp(x: Tensor, fc1: nn.Linear, fc2: nn.Linear) -> Tensor:
    """fc2(gelu(fc1(x))) along the last dimension. Large ones keep x and what goes into GELU for backward, not what comes out."""
    weights = (fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    rows = x.reshape(-1, x.shape[-1])
    if not learns(rows, *weights):
        return _mlp_forward(rows, *weights, hidden=None).view(*x.shape[:-1], len(fc2.weight))
    if len(rows) * len(fc1.weight) * x.itemsize <= 2 * PIECE_BYTES:  # little memory: autograd is faster, which keeps GELU's output too
        return _readable_mlp(rows, *weights).view(*x.shape[:-1], len(fc2.weight))
    y = _Mlp.apply(rows, *weights)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], len(fc2.weight))


def _readable_mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def _to_differentiate_again(function: Callable[..., Tensor], inputs: Sequence[Tensor], dy: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients as autograd finds them through the readable code: a kernel's own could not be differentiated once more."""
    wanted = [x for x in inputs if x.requires_grad]
    with torch.enable_grad():
        y = function(*inputs)
    found = iter(torch.autograd.grad(y, wanted, dy, create_graph=torch.is_grad_enabled()))
    return tuple(next(found) if x.requires_grad else None for x in inputs)


def _batched(dy: Tensor) -> bool:
    """Whether this is many gradients at once (`is_grads_batched`), which no buffer here has room for."""
    return torch._C._functorch.is_legacy_batchedtensor(dy) or torch._C._functorch.is_batchedtensor(dy)


def _mlp_pieces(rows: int, hidden: int, itemsize: int) -> list[slice]:
    size = max(PIECE_BYTES // (hidden * itemsize), 64)
    return [slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size)]


def _mlp_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, hidden: Tensor | None) -> Tensor:
    """Writes what goes into GELU to `hidden` (R, F) if that is given."""
    pieces = _mlp_pieces(len(x), len(w1), x.itemsize)
    y = x.new_empty(len(x), len(w2))
    buffer = x.new_empty(pieces[0].stop, len(w1))
    for piece in pieces:
        activated = buffer[: piece.stop - piece.start]
        before = activated if hidden is None else hidden[piece]
        torch.addmm(b1, x[piece], w1.t(), out=before)
        torch.ops.aten.gelu.out(before, out=activated)
        torch.addmm(b2, activated, w2.t(), out=y[piece])
    return y


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        hidden = x.new_empty(len(x), len(w1))
        y = _mlp_forward(x, w1, b1, w2, b2, hidden)
        ctx.save_for_backward(x, hidden, w1, b1, w2, b2)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, w1, b1, w2, b2 = ctx.saved_tensors
        if torch.is_grad_enabled() or _batched(dy):
            return _to_differentiate_again(_readable_mlp, (x, w1, b1, w2, b2), dy)
        pieces = _mlp_pieces(len(x), len(w1), x.itemsize)
        dx, dw1, dw2, db1 = torch.empty_like(x), torch.empty_like(w1), torch.empty_like(w2), w1.new_zeros(len(w1))
        buffers = x.new_empty(2, pieces[0].stop, len(w1))
        for piece in pieces:
            before = int(piece.start > 0)  # the first piece writes the weights' gradients, the others add to them
            one, two = buffers[:, : piece.stop - piece.start]
            dw2.addmm_(dy[piece].t(), torch.ops.aten.gelu.out(hidden[piece], out=one), beta=before)
            torch.mm(dy[piece], w2, out=one)
            torch.ops.aten.gelu_backward.grad_input(one, hidden[piece], grad_input=two)
            dw1.addmm_(two.t(), x[piece], beta=before)
            db1 += two.sum(0)
            torch.mm(two, w1, out=dx[piece])
        return dx, dw1, db1, dw2, dy.sum(0)


class _Reorder(torch.autograd.Function):
    """The gradient goes the way back in one copy; autograd alone would add it up row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.order, ctx.back = order, back
        return _select(x, order)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return reorder(dy, ctx.back, ctx.order), None, None


def _select(x: Tensor, order: Tensor) -> Tensor:
    """With more places than tokens, some are filled with zeros: those that point behind the last token."""
    return (F.pad(x, (0, 0, 0, 1)) if len(order) > x.shape[1] else x).index_select(1, order)


def reorder(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """Tokens (B, R, C) in another order, with zeros where there is none; `back` leads from the result to x."""
    y: Tensor = _Reorder.apply(x, order, back)  # type: ignore[no-untyped-call]
    return y


def biased_attention(qkv: Tensor, bias: Tensor) -> Tensor:
    """softmax(QKᵀ/√D + bias) V for qkv (G, N, 3, H, D) as (G, N, H·D).

    The bias is (1, H, N, N), or (windows, H, N, N) for G a multiple of that, as many windows as a map has. Forward is PyTorch's fused call,
    which has no gradient for a bias; the backward pass here has one, and computes the softmax once more instead of keeping it.
    """
    y: Tensor = _BiasedAttention.apply(qkv, bias)  # type: ignore[no-untyped-call]
    return y


def _window_pieces(G: int, scores: Tensor) -> list[slice]:
    """Pieces of G windows: some whole maps or an even share of one, so that a bias like `scores` lies along each without a break."""
    windows = len(scores)
    size = max(PIECE_BYTES // 4 // (scores[0].numel() * scores.itemsize), 1)
    size = size // windows * windows or max(share for share in range(1, size + 1) if windows % share == 0)
    return [slice(start, min(start + size, G)) for start in range(0, G, size)]


def _along(piece: slice, bias: Tensor) -> Tensor:
    """The bias of the windows of a piece, of one map if it has several, (1 or windows, H, N, N)."""
    start = piece.start % len(bias)
    return bias[start : start + piece.stop - piece.start]


def _readable_attention(qkv: Tensor, bias: Tensor) -> Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias.repeat(len(q) // len(bias), 1, 1, 1)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class _BiasedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(qkv, bias)
        G, N, _, H, D = qkv.shape
        bias = bias.detach()
        if len(bias) == 1:
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(G, N, H * D)
        y = qkv.new_empty(G, N, H, D)
        for piece in _window_pieces(G, bias):
            q, k, v = qkv[piece].permute(2, 0, 3, 1, 4).unbind(0)
            mask = _along(piece, bias)
            mask = mask.repeat(len(q) // len(mask), 1, 1, 1)
            y[piece] = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        return y.view(G, N, H * D)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        qkv, bias = ctx.saved_tensors
        if torch.is_grad_enabled() or _batched(dy):
            return _to_differentiate_again(_readable_attention, (qkv, bias), dy)
        G, N, _, H, D = qkv.shape
        pieces = _window_pieces(G, bias)
        size = pieces[0].stop if pieces else 0
        # Buffers of a piece: q, k, v, dy and one for what becomes dq, dk and dv, head by head; the softmax and its gradient.
        heads = qkv.new_empty(5, size, H, N, D)
        scores = qkv.new_empty(2, size * H, N, N)
        dqkv, dbias = torch.empty_like(qkv), torch.zeros_like(bias)
        for piece in pieces:
            n = piece.stop - piece.start
            heads[:3, :n] = qkv[piece].permute(2, 0, 3, 1, 4)
            heads[3, :n] = dy[piece].view(n, N, H, D).transpose(1, 2)
            q, k, v, dheads, room = heads[:, :n].flatten(1, 2)
            q *= D**-0.5
            weights, dweights = scores[:, : n * H]
            torch.bmm(q, k.transpose(1, 2), out=weights)
            weights.view(-1, *_along(piece, bias).shape).add_(_along(piece, bias))
            torch.softmax(weights, -1, out=weights)
            dq, dk, dv = dqkv[piece].permute(2, 0, 3, 1, 4)
            dv[:] = torch.bmm(weights.transpose(1, 2), dheads, out=room).view(dv.shape)
            torch.bmm(dheads, v.transpose(1, 2), out=dweights)
            torch._softmax_backward_data(dweights, weights, -1, qkv.dtype, grad_input=dweights)
            _along(piece, dbias).add_(dweights.view(-1, *_along(piece, bias).shape).sum(0))
            torch.mul(torch.bmm(dweights, k, out=room).view(dq.shape), D**-0.5, out=dq)
            dk[:] = torch.bmm(dweights.transpose(1, 2), q, out=room).view(dk.shape)
        return dqkv, dbias
