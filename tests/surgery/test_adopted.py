"""Stepified and deepened models as models of this package: trained, saved, loaded and exported like registered ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stepsnet import UsageError, deepen, load_model, save_model, stepify
from stepsnet.export.program import free_axes
from stepsnet.surgery import save
from stepsnet.surgery.adopted import adopt
from tests.models.tiny import check_same
from tests.surgery import tiny

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4}


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vit")
    save(tiny.stir(stepify(tiny.vit(), tiny.VIT_PLAN, options=SIZES)), folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    model = deepen(tiny.llama(tie_word_embeddings=True, max_position_embeddings=16), "32x2", at="every:2")
    tiny.stir(model).save_pretrained(folder)  # type: ignore[operator]
    return folder


def inputs(model: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return tiny.tokens() if len(model.input_size) == 1 else torch.randn(2, *model.input_size)


@pytest.mark.parametrize("name", ["vit", "llama"])
def test_a_weights_file_makes_the_model_again(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    model = adopt(request.getfixturevalue(name)).eval()
    save_model(model, tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors").eval()
    assert again.plan == model.plan
    assert again.default_cfg["architecture"] == model.default_cfg["architecture"]
    check_same(again, model, lambda network: network(inputs(model)))


def test_a_vision_model_knows_its_plan_blocks_and_cost(vit: Path) -> None:
    model = adopt(vit)
    assert (model.plan, model.count_blocks(), model.input_size) == (tiny.VIT_PLAN, 8, (3, 32, 32))
    assert model.cost().params == sum(p.numel() for p in model.parameters())
    assert "network.pos_embed" in model.no_weight_decay()


def test_activation_memory_is_that_of_the_narrower_blocks(vit: Path) -> None:
    """Ten times a block's tokens (QKV 3, attention 1, projection 1, MLP 5), the patches and the head."""
    model = adopt(vit, num_classes=7)
    (plan,) = model.plans
    blocks = sum(10 * 17 * width * depth for width, depth in zip(plan.widths, plan.depths, strict=True))
    assert model.memory().activations == 4 * (blocks + 16 * 64 + 7)


def test_the_cache_is_as_large_as_that_of_a_real_pass(llama: Path) -> None:
    model: Any = adopt(llama)
    with torch.no_grad():
        cache = model.network(torch.zeros(1, *model.input_size, dtype=torch.long), use_cache=True).past_key_values
    real = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert model.memory().kv_cache == real > 0


def test_another_number_of_classes_makes_a_new_head(vit: Path, tmp_path: Path) -> None:
    model = adopt(vit, num_classes=7, drop_path=0.2).eval()
    assert model(inputs(model)).shape == (2, 7)
    save_model(model, tmp_path / "model.safetensors")
    again: Any = load_model(tmp_path / "model.safetensors").eval()
    check_same(again, model, lambda network: network(inputs(model)))
    assert again.network.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)


def test_a_tied_weight_is_written_once_and_stays_tied(llama: Path, tmp_path: Path) -> None:
    model: Any = adopt(llama)
    assert model.aliases == {"network.lm_head.weight": "network.model.embed_tokens.weight"}
    assert "network.lm_head.weight" not in model.state_dict()
    save_model(model, tmp_path / "model.safetensors")
    again: Any = load_model(tmp_path / "model.safetensors")
    assert again.network.lm_head.weight is again.network.model.embed_tokens.weight


def test_gradient_checkpointing_changes_no_gradient(llama: Path) -> None:
    model = adopt(llama).train()
    gradients = []
    for on in (False, True):
        model.set_grad_checkpointing(on)
        model.zero_grad()
        model(inputs(model)).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_text_of_the_models_lengths_is_exported(llama: Path) -> None:
    axes = free_axes(adopt(llama), dynamic=True, any_size=True)
    assert [(axis.name, axis.smallest, axis.largest) for axis in axes] == [("batch", 1, 4096), ("tokens", 2, 16)]


@pytest.mark.parametrize(
    ("name", "sizes", "sentence"),
    [
        ("vit", {"num_classes": 3, "img_size": 64}, r"images of 3×32×32, not of 3×64×64 .*give data\.img_size=32"),
        ("vit", {"vocab_size": 40, "seq_len": 8}, "takes images; this task needs a model that takes text"),
        ("llama", {"num_classes": 3}, "takes text; this task needs a model that takes images"),
        ("llama", {"vocab_size": 256, "seq_len": 8}, "has 40 tokens, the data 256"),
        ("llama", {"vocab_size": 20, "seq_len": 8}, "has 40 tokens, but the data only 20"),
        ("llama", {"vocab_size": 40, "seq_len": 99}, "takes at most 16 tokens, not 99"),
        ("llama", {"vocab_size": 40, "drop_path": 0.1}, "stochastic depth of a model of transformers is fixed"),
    ],
)
def test_data_that_do_not_fit_are_named(
    name: str, sizes: dict[str, Any], sentence: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(UsageError, match=sentence):
        adopt(request.getfixturevalue(name), **sizes)


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    stepify(tiny.llama().model, tiny.LLAMA_PLAN).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="holds a LlamaModel; this command takes a causal language model or an image"):
        adopt(tmp_path)
