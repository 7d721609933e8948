"""Logits of incremental passes, padded batches and truncated caches equal those of the full pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stepsnet.blocks.attention import Growing, KeyValueCache, TextContext
from stepsnet.models import create_model
from stepsnet.models.language import Transformer

VARIANTS = [
    {"name": "test_transformer"},
    {"name": "test_steps_transformer"},
    {"name": "test_steps_transformer", "join": "matched_grad"},
    {"name": "test_steps_transformer", "macro": "reverse"},
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: "-".join(variant.values()))
def model(request: pytest.FixtureRequest) -> Transformer:
    model = create_model(**request.param).eval()
    assert isinstance(model, Transformer)
    for parameter in model.parameters():  # at the usual start everything is near zero, and so is every mistake
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= 1e-5 * expected.abs().max())


@pytest.mark.parametrize("pieces", [[1] * 24, [20, 1, 1, 1, 1], [7, 9, 8], [24]], ids=str)
@torch.no_grad()
def test_incremental_logits_equal_the_full_pass(model: Transformer, pieces: list[int]) -> None:
    ids = torch.randint(0, 256, (3, 24))
    cache = model.new_cache()
    found = torch.cat([model(piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)
    assert close(found, model(ids))


@torch.no_grad()
def test_beyond_the_training_length_the_cache_still_equals_the_full_pass(model: Transformer) -> None:
    (trained,) = model.input_size
    ids = torch.randint(0, 256, (1, 3 * trained))
    cache = model.new_cache()
    found = torch.cat([model(piece, cache) for piece in ids.split([3 * trained - 9, *[1] * 9], dim=1)], dim=1)
    assert found.isfinite().all()
    assert close(found, model(ids))


@torch.no_grad()
def test_each_block_caches_at_the_width_of_its_step(model: Transformer) -> None:
    cache = model.new_cache()
    model(torch.randint(0, 256, (2, 5)), cache)
    widths = [keys.tensor.shape[1] * keys.tensor.shape[3] for keys, _ in cache.blocks]
    (plan,) = model.plans
    expected = [width for width, depth in zip(plan.widths, plan.depths, strict=True) for _ in range(depth)]
    assert sorted(widths) == expected
    assert cache.length == 5


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_does_not_change_the_logits_of_text(model: Transformer, side: str) -> None:
    ids = torch.randint(0, 256, (2, 12))
    real = torch.ones(2, 12, dtype=torch.bool)
    text = slice(4, None) if side == "left" else slice(None, 8)
    real[1] = False
    real[1, text] = True
    found = model(ids, mask=real)
    assert found.isfinite().all()
    assert close(found[1, text], model(ids[1:, text])[0])
    assert close(found[0], model(ids[:1])[0])


@torch.no_grad()
def test_padded_batches_continue_incrementally(model: Transformer) -> None:
    ids = torch.randint(0, 256, (2, 12))
    real = torch.ones(2, 12, dtype=torch.bool)
    real[1, :5] = False
    cache = model.new_cache()
    found = torch.cat([model(ids[:, :9], cache, real[:, :9]), model(ids[:, 9:], cache, real)], dim=1)
    assert close(found[1, 5:], model(ids[1:, 5:])[0])


@torch.no_grad()
def test_a_truncated_cache_is_attention_over_a_window(model: Transformer) -> None:
    reach, ids = 6, torch.randint(0, 256, (2, 15))
    cache = model.new_cache()
    found = []
    for position in range(15):
        cache.keep(reach - 1)
        found.append(model(ids[:, position : position + 1], cache, positions=torch.full((2, 1), position)))
        assert cache.length <= reach
    everything = torch.ones(15, 15, dtype=torch.bool)
    window = everything.tril() & ~everything.tril(-reach)
    context = TextContext(model.rotary_tables(torch.arange(15)), window, None)
    expected = model.forward_head(model.norm(model.net(model.embed(ids), context)))
    assert close(torch.cat(found, dim=1), expected)


def test_keeping_more_tokens_than_cached_drops_none() -> None:
    cache = KeyValueCache()
    cache.extend(0, torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    cache.keep(9)
    assert cache.length == 3
    cache.keep(0)
    assert cache.length == 0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=20))
def test_a_growing_tensor_holds_what_was_appended_and_kept(steps: list[tuple[int, int]]) -> None:
    growing: Growing | None = None
    expected = torch.empty(2, 3, 0, 4)
    for size, kept in steps:
        new = torch.rand(2, 3, size, 4)
        expected = torch.cat((expected, new), dim=2)
        if growing is None:
            growing = Growing(new)
        else:
            growing.append(new)
        growing.keep(kept)
        expected = expected[:, :, max(expected.shape[2] - kept, 0) :]
        assert torch.equal(growing.tensor, expected)
        assert len(growing) == expected.shape[2]
