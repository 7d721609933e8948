"""Attention against its definition, written out slowly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepsnet.blocks.attention import Attention, heads_for
from stepsnet.blocks.window import WindowAttention


def attend(layer: Attention | WindowAttention, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(QKᵀ/√D + bias) V for one group of tokens (N, C), head by head."""
    q, k, v = layer.qkv(tokens).chunk(3, dim=-1)
    heads = []
    for head in range(layer.heads):
        part = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
        scores = q[:, part] @ k[:, part].T / layer.head_dim**0.5
        heads.append((scores if bias is None else scores + bias[head]).softmax(dim=-1) @ v[:, part])
    return layer.proj(torch.cat(heads, dim=-1))


def lively(layer: Attention | WindowAttention) -> Attention | WindowAttention:
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def test_attention() -> None:
    layer = lively(Attention(12, 3))
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(layer(x), torch.stack([attend(layer, tokens) for tokens in x]))


def slow_window_attention(layer: WindowAttention, image: Tensor) -> Tensor:
    """Window by window over one map (H, W, C): roll, pad, cut, attend, put back."""
    H, W, C = image.shape
    h, w = min(layer.window, H), min(layer.window, W)
    down, right = (layer.shift if h < H else 0), (layer.shift if w < W else 0)
    high, wide = -(-H // h) * h, -(-W // w) * w
    padded = torch.zeros(high, wide, C)
    padded[:H, :W] = image.roll((-down, -right), (0, 1))
    result = torch.zeros(high, wide, C)

    def bias(place: tuple[int, int], other: tuple[int, int]) -> Tensor:
        """The table's entry for their distance; far lower where the shift wrapped only one of them around an edge."""
        reach = layer.window - 1
        dy, dx = place[0] - other[0] + reach, place[1] - other[1] + reach
        wrapped, other_wrapped = ((row >= high - down, column >= wide - right) for row, column in (place, other))
        return layer.bias_table[dy * (2 * layer.window - 1) + dx] - 100.0 * (wrapped != other_wrapped)

    for top in range(0, high, h):
        for left in range(0, wide, w):
            places = [(top + i, left + j) for i in range(h) for j in range(w)]
            biases = torch.stack([torch.stack([bias(place, other) for other in places]) for place in places])
            rows, columns = (list(along) for along in zip(*places, strict=True))
            result[rows, columns] = attend(layer, padded[rows, columns], biases.permute(2, 0, 1))
    return result[:H, :W].roll((down, right), (0, 1))


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (4, 4), (7, 9), (3, 9), (2, 3), (1, 1)], ids=str)
def test_window_attention(size: tuple[int, int], shifted: bool) -> None:
    layer = lively(WindowAttention(6, 2, window=4, shifted=shifted))
    assert isinstance(layer, WindowAttention)
    x = torch.randn(2, *size, 6)
    with torch.no_grad():
        expected = torch.stack([slow_window_attention(layer, image) for image in x])
        torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)


def test_a_window_as_large_as_the_map_is_attention_over_the_map() -> None:
    layer = lively(WindowAttention(6, 2, window=5, shifted=True))
    assert isinstance(layer, WindowAttention)
    torch.nn.init.zeros_(layer.bias_table)
    x = torch.randn(1, 5, 5, 6)
    torch.testing.assert_close(layer(x).flatten(1, 2)[0], attend(layer, x.flatten(1, 2)[0]))


@pytest.mark.parametrize(("width", "heads"), [(192, 3), (136, 2), (272, 4), (544, 8), (368, 8), (7, 1)])
def test_heads_come_nearest_the_wanted_dimension(width: int, heads: int) -> None:
    assert heads_for(width, 64) == heads
