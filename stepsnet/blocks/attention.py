"""Self-attention over a sequence of tokens: plain for images; causal, with rotary positions and a cache, for text.

Shapes: B batch, N tokens (T new ones, S with those in the cache), C channels, H heads, D = C / H.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.layers import linear
from stepsnet.errors import UsageError


def divisors(width: int) -> list[int]:
    return [number for number in range(1, width + 1) if width % number == 0]


def head_dim(width: int, heads: int) -> int:
    if heads not in divisors(width):
        allowed = ", ".join(map(str, divisors(width)))
        raise UsageError(f"{heads} heads do not divide width {width}; numbers that do: {allowed}")
    return width // heads


def heads_of_dim(width: int, dim: int) -> int:
    if dim not in divisors(width):
        allowed = ", ".join(map(str, divisors(width)))
        raise UsageError(f"heads of {dim} channels do not divide width {width}; dimensions that do: {allowed}")
    return width // dim


def heads_for(width: int, target_dim: int, even: bool = False) -> int:
    """The number of heads whose dimension is nearest `target_dim`, and even where rotary positions need pairs."""
    dims = [dim for dim in divisors(width) if not (even and dim % 2)]
    if not dims:
        raise UsageError(f"width {width} has no even head dimension, which rotary positions need; take an even width")
    return width // min(dims, key=lambda dim: (abs(dim - target_dim), dim))


class Attention(nn.Module):
    """Multi-head self-attention, (B, N, C) to (B, N, C), as in DeiT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim(width, heads)
        self.qkv = linear(width, 3 * width)
        self.proj = linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Cache(Protocol):
    """What a language model needs of a cache: ours below, or an adapter of another library's."""

    @property
    def length(self) -> int:
        """How many tokens it holds."""

    def extend(self, block: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new tokens' (B, H, T, D) of one block; returns all of that block's keys and values."""


class Growing:
    """A tensor (B, H, S, D) that grows along S. Memory is reserved ahead: a new token does not copy all others."""

    def __init__(self, first: Tensor) -> None:
        self._reserved = first
        self._start, self._stop = 0, first.shape[2]

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def tensor(self) -> Tensor:
        return self._reserved[:, :, self._start : self._stop]

    def append(self, new: Tensor) -> Tensor:
        """The whole tensor, with `new` at the end."""
        if self._stop + new.shape[2] > self._reserved.shape[2]:
            B, H, T, D = new.shape
            larger = new.new_empty(B, H, 2 * (len(self) + T), D)
            larger[:, :, : len(self)] = self.tensor
            self._reserved, self._start, self._stop = larger, 0, len(self)
        self._reserved[:, :, self._stop : self._stop + new.shape[2]] = new
        self._stop += new.shape[2]
        return self.tensor

    def keep(self, tokens: int) -> None:
        self._start = max(self._start, self._stop - tokens)


class KeyValueCache:
    """Keys and values of all earlier tokens, one pair per block, each at its block's width."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Growing, Growing]] = []

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        return len(self.blocks[0][0]) if self.blocks else 0

    @property
    def bytes(self) -> int:
        """The size of all keys and values, without the memory reserved ahead."""
        return sum(part.tensor.numel() * part.tensor.element_size() for pair in self.blocks for part in pair)

    def keep(self, tokens: int) -> None:
        """Keep only the newest `tokens`. After this the caller must give the positions of new tokens."""
        for keys, values in self.blocks:
            keys.keep(tokens)
            values.keep(tokens)

    def extend(self, block: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new tokens' (B, H, T, D) of one block; returns all of that block's keys and values."""
        if block == len(self.blocks):
            self.blocks.append((Growing(k), Growing(v)))
            return k, v
        keys, values = self.blocks[block]
        return keys.append(k), values.append(v)


def attend(_layer: CausalAttention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of T new tokens to S: those that the mask (…, T, S) allows, or without one all that came before."""
    if mask is not None or q.shape[2] == 1:  # one new token may look at all that came before
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@dataclass
class TextContext:
    """Shared by the blocks in one pass: rotary tables by head dimension, the mask, the cache if there is one."""

    rotary: dict[int, tuple[Tensor, Tensor]]
    mask: Tensor | None = None
    cache: Cache | None = None
    attend: Callable[[CausalAttention, Tensor, Tensor, Tensor, Tensor | None], Tensor] = attend
    """Attention from the layer, queries, keys, values and mask; another implementation may be given."""


def causal_mask(real: Tensor | None, new: int, past: int, device: torch.device) -> Tensor | None:
    """Which of all S = past + new tokens each new one attends to, (T, S) or (B, 1, T, S); None: no mask is needed.

    `real` (B, S) is false where a token is padding. Padding attends to itself, so that no row is empty; other tokens
    do not attend to it.
    """
    if real is None and (past == 0 or new == 1):
        return None
    before = torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past)
    if real is None:
        return before
    return (before & real.bool()[:, None, None, :]) | (before & ~before.tril(past - 1))


def rotary_table(positions: Tensor, dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine (…, T, dim), fp32, of rotary positions (arXiv 2104.09864); pairs (i, i + dim/2) as in LLaMA."""
    frequencies = base ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angles = positions.unsqueeze(-1).float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = table
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)


class CausalAttention(nn.Module):
    """Causal self-attention with rotary positions and no biases, as in LLaMA; `block` is its index in the cache.

    `heads` heads of `head_dim` channels may be more or less than the width.
    """

    def __init__(self, width: int, heads: int, head_dim: int, block: int) -> None:
        super().__init__()
        if head_dim % 2:
            each = f"{heads} heads of width {width} are {head_dim} channels each"
            raise UsageError(f"{each}; rotary positions need an even number")
        self.heads = heads
        self.head_dim = head_dim
        self.layer_idx = block  # the name that paged caches of transformers look for
        inner = heads * head_dim
        self.qkv = linear(width, 3 * inner, bias=False)
        self.proj = linear(inner, width, bias=False)

    def forward(self, x: Tensor, context: TextContext) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        table = context.rotary[self.head_dim]
        q, k = rotate(q, table), rotate(k, table)
        if context.cache is not None:
            k, v = context.cache.extend(self.layer_idx, k, v)
        x = context.attend(self, q, k, v, context.mask)
        return self.proj(x.transpose(1, 2).reshape(B, T, self.proj.in_features))
