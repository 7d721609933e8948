"""Heads of each block in the configuration, equal heads in all steps, and classification heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    CompileConfig,
    ContinuousBatchingConfig,
    GenerationConfig,
    StaticCache,
)

from stepsnet.errors import UsageError
from stepsnet.models import create_model
from stepsnet.models.language import Transformer
from stepsnet.transformers import StepsTransformerConfig, StepsTransformerForCausalLM
from tests.integrations.transformers.common import make_config, make_ids, make_model, write


def heads_of_blocks(config: StepsTransformerConfig) -> list[tuple[int, int]]:
    return [(layer.num_attention_heads, layer.head_dim) for layer in cast(Any, config).per_layer_config]


@pytest.mark.parametrize("macro", ["steps", "reverse"])
def test_the_configuration_has_the_heads_of_each_block(macro: str, tmp_path: Path) -> None:
    config = make_config(plan="16x2, 24x1, 32x1", macro=macro, head_dim=8)
    expected = [(2, 8), (2, 8), (3, 8), (4, 8)]
    assert heads_of_blocks(config) == (expected if macro == "steps" else expected[::-1])
    config.save_pretrained(tmp_path)
    assert heads_of_blocks(StepsTransformerConfig.from_pretrained(tmp_path)) == heads_of_blocks(config)


def test_static_caches_have_the_heads_of_each_block() -> None:
    """The library allocates them from the configuration, before the first pass."""
    model = make_model(plan="16x2, 24x1, 32x1", head_dim=8)
    cache = StaticCache(config=model.config, max_cache_len=16)
    heads, dims = cast(Any, model)._get_static_cache_init_shape()
    cast(Any, cache).early_initialization(2, heads, dims, torch.float32, torch.device("cpu"))
    ids = make_ids(length=6)
    found = cast(Any, model)(ids, past_key_values=cache).logits
    torch.testing.assert_close(found, model(ids).logits, rtol=1e-5, atol=1e-5)


def test_a_one_step_configuration_names_its_head_dimension() -> None:
    assert make_config("test_transformer").head_dim == 32
    assert vars(make_config(plan="16x1, 32x1"))["head_dim"] is None  # the option of the family: own heads per step


def test_generation_with_a_static_cache_is_one_graph() -> None:
    """`_can_compile_fullgraph`: the library may compile `generate` with fullgraph=True. Dynamo alone shows breaks."""
    assert StepsTransformerForCausalLM._can_compile_fullgraph
    model, ids = make_model(plan="16x1, 32x1"), make_ids(length=6)
    expected = write(model, ids)
    settings = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=cast(Any, None))
    vars(settings)["_compile_all_devices"] = True  # the library compiles on accelerators only, unless told so
    torch.compiler.reset()
    found = write(model, ids, cache_implementation="static", compile_config=settings)
    assert torch.equal(found, expected)
    assert "_compiled_call" in vars(model)


def test_continuous_batching_with_uniform_heads() -> None:
    """The library's paged cache has one head shape for all layers."""
    model, ids = make_model(heads="uniform", head_dim=8), make_ids(length=6)
    settings = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
    small = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=32)
    inputs = ids.tolist()
    found = cast(Any, model).generate_batch(inputs, settings, continuous_batching_config=small)
    written = [result.generated_tokens for _, result in sorted(found.items())]
    assert written == write(model, ids)[:, 6:].tolist()


def test_uniform_heads_are_those_of_the_last_step() -> None:
    model = create_model("test_steps_transformer", heads="uniform", head_dim=8)
    assert isinstance(model, Transformer)
    cache = model.new_cache()
    ids = make_ids()
    model.eval()(ids[:, :7], cache)
    assert {tuple(keys.tensor.shape) for keys, _ in cache.blocks} == {(2, 4, 7, 8)}
    torch.testing.assert_close(model(ids[:, 7:], cache), model(ids)[:, 7:], rtol=1e-5, atol=1e-5)


def test_uniform_heads_need_no_heads_of_each_block() -> None:
    model = make_model(heads="uniform", head_dim=8)
    config = model.config
    assert not cast(Any, config).is_heterogeneous
    assert (config.num_attention_heads, config.head_dim) == (4, 8)
    assert write(model, make_ids()).shape == (2, 20)


def test_unknown_heads_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no heads='equal'; known are own, uniform"):
        create_model("test_steps_transformer", heads="equal")


@pytest.mark.parametrize("auto", [AutoModelForSequenceClassification, AutoModelForTokenClassification])
def test_classification_heads_read_the_folder_of_a_language_model(auto: Any, tmp_path: Path) -> None:
    make_model(vocab_size=256).save_pretrained(tmp_path)
    model = auto.from_pretrained(tmp_path, num_labels=3, pad_token_id=0).train()
    ids = make_ids()
    labels = torch.tensor([0, 2]) if auto is AutoModelForSequenceClassification else ids % 3
    found = model(ids, labels=labels)
    assert found.logits.shape == (*labels.shape, 3)
    found.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
