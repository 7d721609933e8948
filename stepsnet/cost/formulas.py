"""Costs in closed form. "FLOPs" in the paper are multiply-accumulates (MACs) of matrix products and convolutions of one input.

Layers follow Table 1: every convolution or linear layer on the main path is one and attention is one, so that a Transformer block
is 5 (QKV, attention, output, two in the MLP), a basic block 2, a bottleneck 3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Of a network or of a part of it; costs add up. Blocks and layers are None for a model whose structure nobody declared."""

    blocks: int | None = 0
    layers: int | None = 0
    params: int = 0
    macs: int = 0

    def __add__(self, other: Cost) -> Cost:
        blocks = None if self.blocks is None or other.blocks is None else self.blocks + other.blocks
        layers = None if self.layers is None or other.layers is None else self.layers + other.layers
        return Cost(blocks, layers, self.params + other.params, self.macs + other.macs)

    def __mul__(self, times: int) -> Cost:
        return sum((self for _ in range(times)), Cost())


def block(*parts: Cost) -> Cost:
    """The parts of one residual block, counted as one."""
    return sum(parts, Cost(blocks=1))


def parameters(count: int) -> Cost:
    """Parameters that cost no MACs: norms, tokens, positions, biases on attention."""
    return Cost(params=count)


def linear(in_width: int, out_width: int, tokens: int, bias: bool = True, layers: int = 1) -> Cost:
    return Cost(layers=layers, params=in_width * out_width + (out_width if bias else 0), macs=tokens * in_width * out_width)


def conv(in_chans: int, out_chans: int, kernel: int, pixels: int, groups: int = 1, bias: bool = False, layers: int = 1) -> Cost:
    """`pixels` are those of the output."""
    weights = in_chans // groups * out_chans * kernel * kernel
    return Cost(layers=layers, params=weights + (out_chans if bias else 0), macs=pixels * weights)


def attention(tokens: int, width: int, groups: int = 1) -> Cost:
    """QKᵀ and its product with V, 2N²C, for each of `groups` groups of N tokens that attend to one another (Eq. 3)."""
    return Cost(layers=1, macs=groups * 2 * tokens * tokens * width)


def transformer_block(width: int, tokens: int) -> Cost:
    """Eq. 3 for one block: 12NC² + 2N²C MACs; with biases and two layer norms."""
    return block(
        parameters(2 * width),
        linear(width, 3 * width, tokens),
        attention(tokens, width),
        linear(width, width, tokens),
        parameters(2 * width),
        linear(width, 4 * width, tokens),
        linear(4 * width, width, tokens),
    )
