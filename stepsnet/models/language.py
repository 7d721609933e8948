"""Transformer and Steps-Transformer (Table 4): language models like LLaMA (arXiv 2302.13971).

They have RMSNorm, rotary positions and SwiGLU. Shapes: B batch, T new tokens, S tokens with those in the cache, C
channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.attention import (
    Cache,
    CausalAttention,
    KeyValueCache,
    TextContext,
    causal_mask,
    heads_for,
    rotary_table,
)
from stepsnet.blocks.designs import ResidualPart
from stepsnet.blocks.layers import SwiGLU
from stepsnet.blocks.residual import Place
from stepsnet.cost import run_on_meta
from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models.design import PLAIN, Design, StageBuilder, check_width, head_rule, multiple_of
from stepsnet.models.model import Model
from stepsnet.models.registry import register

HEAD_DIM = 64
HEADS = ("own", "uniform")
round_width = multiple_of(16)


def heads_of(width: int) -> int:
    return heads_for(width, HEAD_DIM, even=True)


def head_shapes(plan: StepPlan, head_dim: int | None = None, heads: str = "own") -> dict[int, tuple[int, int]]:
    """Number and dimension of the heads in each step, by its width; see `Transformer`."""
    if heads not in HEADS:
        raise UsageError(f"there is no heads='{heads}'; known are {', '.join(HEADS)}")
    count = head_rule(heads_of, head_dim)
    used = [width for width, depth in zip(plan.widths, plan.depths, strict=True) if depth]
    sources = {width: plan.width if heads == "uniform" else width for width in used}
    return {width: (count(source), source // count(source)) for width, source in sources.items()}


def text_positions(mask: Tensor) -> Tensor:
    """The position of each token in its text, (B, S); padding, where the mask (B, S) is false, does not count."""
    return (mask.long().cumsum(-1) - 1).clamp_min(0)


class Block(nn.Module):
    """Causal attention, then SwiGLU. Both are residual branches with an RMSNorm first."""

    def __init__(self, place: Place, heads: int, head_dim: int, residual: ResidualPart) -> None:
        super().__init__()
        width = place.width
        attention = CausalAttention(width, heads, head_dim, place.index)
        self.attn = residual(nn.RMSNorm(width, eps=1e-6), attention, place)
        self.mlp = residual(nn.RMSNorm(width, eps=1e-6), SwiGLU(width), place)

    def forward(self, x: Tensor, context: TextContext) -> Tensor:
        return self.mlp(self.attn(x, context))


class Embedding(nn.Embedding):
    """Token embedding times `scale`; the head has the same weight, which starts with deviation 0.02 as in LLaMA."""

    def __init__(self, vocab_size: int, width: int, scale: float) -> None:
        super().__init__(vocab_size, width)
        self.scale = scale

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.scale


class Transformer(Model):
    """Token ids (B, T) in, logits (B, T, vocab_size) out. The head is the transposed embedding.

    With heads="own", each step has the heads that fit its width. With "uniform", all steps have those of the last one,
    so that the keys and values of all blocks have the same shape, which some tools assume. That costs more weights.
    `embed_scale` multiplies the embeddings, but not the weight of the head; with 50 their values start at size 1.
    """

    family = "transformer"
    block: type[Block] = Block

    def __init__(
        self,
        *,
        embed_dim: int,
        depth: int,
        vocab_size: int = 50000,
        seq_len: int = 128,
        head_dim: int | None = None,
        heads: str = "own",
        embed_scale: float = 1.0,
        design: Design = PLAIN,
    ) -> None:
        super().__init__()
        if not 0.0 < embed_scale < float("inf"):
            raise UsageError(f"embed_scale is {embed_scale}, but must be a positive number")
        (plan,) = self.plans = design.plans([StepPlan.residual(embed_dim, depth)], round_width)
        check_width(plan, embed_dim, "the model")
        self.input_size = (seq_len,)
        self.vocab_size = vocab_size
        self.embed: nn.Embedding = Embedding(vocab_size, embed_dim, embed_scale)
        shapes = head_shapes(plan, head_dim, heads)
        build = StageBuilder(design, plan.blocks)
        self.net = build.stage(plan, lambda place: self.block(place, *shapes[place.width], build.residual))
        self.norm = nn.RMSNorm(embed_dim, eps=1e-6)
        self.num_features = embed_dim
        self.head_dims = sorted({m.head_dim for m in self.modules() if isinstance(m, CausalAttention)})

    def cfg(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size}

    def stem_names(self) -> tuple[str, ...]:
        return ("embed.",)

    def new_cache(self) -> KeyValueCache:
        """An empty cache for `forward`. Pass the same cache with every part of the text."""
        return KeyValueCache()

    def forward(
        self, x: Tensor, cache: Cache | None = None, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        return self.forward_head(self.forward_features(x, cache, mask, positions))

    def forward_head(self, x: Tensor) -> Tensor:
        """Logits from hidden states."""
        return F.linear(x, self.embed.weight)

    def forward_features(
        self, x: Tensor, cache: Cache | None = None, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """The last hidden state (B, T, C) after its norm.

        With a cache, `x` has the ids of the T tokens after those in the cache. For texts of unequal lengths, `mask` (B,
        S) is false at padding. `positions` (T) or (B, T) are by default counted along each text, without padding.
        """
        if x.dim() != 2 or x.is_floating_point():
            raise UsageError(
                f"the language model takes token ids of shape (batch, tokens), got {tuple(x.shape)} of {x.dtype}"
            )
        T = x.shape[1]
        past = cache.length if cache is not None else 0
        if positions is None:
            positions = (
                torch.arange(past, past + T, device=x.device) if mask is None else text_positions(mask)[:, past:]
            )
        context = TextContext(self.rotary_tables(positions), causal_mask(mask, T, past, x.device), cache)
        return self.norm(self.net(self.embed(x), context))

    def rotary_tables(self, positions: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
        """Cosine and sine for positions (T) or (B, T), by head dimension."""
        rows = positions if positions.dim() == 1 else positions[:, None]  # (B, 1, T) for all heads
        return {dim: rotary_table(rows, dim) for dim in self.head_dims}

    def count_layers(self) -> int:
        return super().count_layers() + 1  # the head, which is not a module

    def count_cache(self, x: Tensor) -> int:
        cache = self.new_cache()
        run_on_meta(self, x, cache)
        return cache.bytes

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.zeros(1, *(input_size or self.input_size), dtype=torch.long, device="meta")


register(Transformer, "transformer_30m", embed_dim=384, depth=6)
register(Transformer, "transformer_44m", embed_dim=512, depth=6)
register(Transformer, "transformer_63m", embed_dim=512, depth=12)
register(Transformer, "steps_transformer_30m", embed_dim=384, depth=6, plan="192x6, 272x3, 384x3")
register(Transformer, "steps_transformer_44m", embed_dim=512, depth=6, plan="256x6, 368x3, 512x3")
register(Transformer, "steps_transformer_63m", embed_dim=512, depth=12, plan="256x12, 368x6, 512x6")
# Small enough to ship trained (stepsnet/pretrained): byte-level, 0.7 M parameters.
register(Transformer, "transformer_mini", embed_dim=96, depth=6, vocab_size=256, seq_len=128)
register(
    Transformer, "steps_transformer_mini", embed_dim=96, depth=6, plan="48x6, 64x3, 96x3", join="matched_grad",
    vocab_size=256, seq_len=128,
)  # fmt: skip
register(Transformer, "test_transformer", embed_dim=32, depth=4, vocab_size=256, seq_len=32)
register(
    Transformer, "test_steps_transformer", embed_dim=32, depth=4, plan="16x4, 24x2, 32x2", vocab_size=256, seq_len=32
)
