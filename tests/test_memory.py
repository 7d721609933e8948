"""Memory is counted as defined: the outputs of layers, and keys and values at each block's width."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stepsnet.blocks.attention import Attention
from stepsnet.cost import Memory, count_activations
from stepsnet.errors import UsageError
from stepsnet.models import create_model, memory_of
from stepsnet.models.language import Transformer
from tests.models.tiny import TINY

FP32 = 4


def test_a_transformer_block_has_ten_times_its_tokens() -> None:
    """QKV 3, attention 1, projection 1, MLP 4 + 1; then the patches, the head."""
    N, C, blocks, patches, classes = 17, 32, 4, 16, 10
    expected = FP32 * (10 * N * C * blocks + patches * C + classes)
    assert memory_of("test_deit") == Memory(expected, 0)


def test_a_language_block_has_six_times_its_tokens_and_twice_its_hidden_width() -> None:
    """QKV 3, attention 1, projection 1, gate and up 2 hidden, down 1; then the logits."""
    T, steps, hidden = 32, [(16, 4), (24, 2), (32, 2)], {16: 43, 24: 64, 32: 85}
    expected = sum(depth * T * (6 * width + 2 * hidden[width]) for width, depth in steps) + T * 256
    assert memory_of("test_steps_transformer").activations == FP32 * expected


def test_a_basic_block_has_twice_its_map() -> None:
    one, two = (memory_of(create_model("test_resnet", depths=(depth, 1, 1, 1), device="meta")) for depth in (1, 2))
    assert two.activations - one.activations == FP32 * 2 * 8 * 8 * 8


def test_the_cache_holds_keys_and_values_at_the_width_of_each_block() -> None:
    T, steps = 32, [(16, 4), (24, 2), (32, 2)]
    assert memory_of("test_steps_transformer").kv_cache == FP32 * 2 * T * sum(width * depth for width, depth in steps)


def test_the_cache_of_a_real_pass_is_as_large() -> None:
    model = create_model("test_steps_transformer")
    assert isinstance(model, Transformer)
    cache = model.new_cache()
    with torch.no_grad():
        for length in (5, 1, 1):  # a prompt and two new tokens: memory reserved ahead does not count
            model(torch.zeros(1, length, dtype=torch.long), cache)
    assert cache.bytes == memory_of(model, input_size=(7,)).kv_cache


def test_half_the_precision_is_half_the_memory() -> None:
    model = create_model("test_steps_transformer", device="meta")
    full, half = model.memory(), model.bfloat16().memory()
    assert (full.activations, full.kv_cache) == (2 * half.activations, 2 * half.kv_cache)


@pytest.mark.parametrize("name", TINY)
def test_blocks_of_one_kind_may_be_counted_once(name: str) -> None:
    model = create_model(name, device="meta")
    assert model.memory().activations == count_activations(model, model.dummy_input())


def test_scores_of_attention_are_not_counted() -> None:
    N, C = 50, 16
    assert count_activations(Attention(C, 4), torch.zeros(1, N, C)) == FP32 * 5 * N * C


def test_modules_of_other_libraries_are_counted() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    assert memory_of(module, input_size=(3, 8, 8)) == Memory(FP32 * (8 * 6 * 6 + 5), 0)


def test_modules_of_other_libraries_need_an_input_size() -> None:
    with pytest.raises(UsageError, match="the input of Linear is unknown; give input_size"):
        memory_of(nn.Linear(2, 2))


def test_a_functional_layer_is_counted() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight)

    assert count_activations(Tied(), torch.zeros(3, 8)) == FP32 * 24
