"""The tests of transformers' ModelTesterMixin under their names; docs/how-to/language.md lists those left out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors
import safetensors.torch
import torch
from transformers import AutoModel, AutoModelForCausalLM

from stepsnet.integrations.transformers import (
    StepsTransformerConfig,
    StepsTransformerForCausalLM,
    StepsTransformerModel,
)
from tests.integrations.transformers.common import NAMES, make_config, make_ids, make_model

both = pytest.mark.parametrize("name", NAMES)


def reload(model: StepsTransformerForCausalLM, folder: Path, **options: Any) -> Any:
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


@both
def test_save_load(tmp_path: Path, name: str) -> None:
    model, ids = make_model(name), make_ids()
    torch.testing.assert_close(reload(model, tmp_path)(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)


def test_save_load_base_model(tmp_path: Path) -> None:
    model, ids = make_model(), make_ids()
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(base, StepsTransformerModel)
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_from_pretrained_dtype(tmp_path: Path) -> None:
    loaded = reload(make_model(), tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded(make_ids()).logits.isfinite().all()


def test_can_use_safetensors_and_tied_weights_are_saved_once(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        keys = set(file.keys())
    assert "model.network.embed.weight" in keys
    assert "lm_head.weight" not in keys


def test_model_weights_reload_no_missing_tied_weights(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    loaded, report = cast(Any, AutoModelForCausalLM).from_pretrained(tmp_path, output_loading_info=True)
    assert (set(report["missing_keys"]), set(report["unexpected_keys"])) == (set(), set())
    assert loaded.lm_head.weight is loaded.get_input_embeddings().weight


def test_load_save_without_tied_weights(tmp_path: Path) -> None:
    config = make_config()
    config.tie_word_embeddings = False
    model, ids = cast(Any, StepsTransformerForCausalLM(config)).eval(), make_ids()
    assert model.lm_head.weight is not model.get_input_embeddings().weight
    loaded = reload(model, tmp_path)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_can_init_all_missing_weights(tmp_path: Path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    gone = "model.network.net.steps.1.blocks.0.mlp.branch.down.weight"
    kept = {key: tensor for key, tensor in weights.items() if key != gone}
    safetensors.torch.save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, report = cast(Any, AutoModelForCausalLM).from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {gone}
    found = loaded.state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in kept.items())
    assert 0.01 < found[gone].std() < 0.03


def test_load_with_mismatched_shapes(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatch"):
        AutoModelForCausalLM.from_pretrained(tmp_path, vocab_size=99)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, vocab_size=99, ignore_mismatched_sizes=True)
    assert loaded(make_ids() % 99).logits.shape[-1] == 99


def test_initialization_is_ours() -> None:
    model = StepsTransformerForCausalLM(make_config())
    for key, parameter in model.named_parameters():
        expected = 1.0 if "norm" in key else 0.02
        assert (parameter.mean() if "norm" in key else parameter.std()).item() == pytest.approx(expected, rel=0.25)


@both
def test_determinism(name: str) -> None:
    model, ids = make_model(name), make_ids()
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_forward_signature_and_main_input_name() -> None:
    names = list(inspect.signature(StepsTransformerForCausalLM.forward).parameters)
    assert names[:3] == ["self", "input_ids", "attention_mask"]
    assert StepsTransformerForCausalLM.main_input_name == "input_ids"


@both
def test_batching_equivalence(name: str) -> None:
    model, ids = make_model(name), make_ids(4)
    together = model(ids).logits
    for row in range(4):
        assert torch.allclose(model(ids[row : row + 1]).logits[0], together[row], atol=1e-5)


@both
def test_attention_outputs(name: str) -> None:
    model, ids = make_model(name, attention="eager"), make_ids()
    attentions = model(ids, output_attentions=True).attentions
    assert len(attentions) == model.config.num_hidden_layers
    for weights in attentions:
        assert weights.shape == (2, weights.shape[1], 12, 12)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert weights.triu(1).abs().max() == 0
    assert model(ids).attentions is None


@both
def test_hidden_states_output(name: str) -> None:
    model, ids = make_model(name), make_ids()
    output = model(ids, output_hidden_states=True)
    assert len(output.hidden_states) == 1 + len(model.model.network.blocks_in_order())
    assert {tuple(state.shape) for state in output.hidden_states} == {(2, 12, 32)}
    assert torch.equal(output.hidden_states[0], model.get_input_embeddings()(ids))
    assert torch.equal(model.lm_head(output.hidden_states[-1]), output.logits)
    assert torch.equal(output.logits, model(ids).logits)


def test_retain_grad_hidden_states_attentions() -> None:
    model = make_model(attention="eager")
    output = model(make_ids(), output_hidden_states=True, output_attentions=True, use_cache=False)
    output.hidden_states[0].retain_grad()
    output.attentions[0].retain_grad()
    output.logits.flatten()[0].backward()
    assert output.hidden_states[0].grad is not None
    assert output.attentions[0].grad is not None


@both
def test_model_outputs_equivalence(name: str) -> None:
    model, ids = make_model(name), make_ids()
    named = model(ids, labels=ids, use_cache=False, output_hidden_states=True)
    plain = model(ids, labels=ids, use_cache=False, output_hidden_states=True, return_dict=False)
    assert torch.equal(plain[0], named.loss)
    assert torch.equal(plain[1], named.logits)
    assert all(torch.equal(a, b) for a, b in zip(plain[2], named.hidden_states, strict=True))


@both
def test_training(name: str) -> None:
    model, ids = make_model(name).train(), make_ids()
    loss = model(ids, labels=ids).loss
    loss.backward()
    expected = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert torch.allclose(loss, expected)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_labels_of_minus_100_do_not_count() -> None:
    model, ids = make_model(), make_ids(1)
    labels = ids.clone()
    labels[:, 6:] = -100
    assert torch.allclose(model(ids, labels=labels).loss, model(ids[:, :6], labels=ids[:, :6]).loss, atol=1e-6)


@pytest.mark.parametrize("arguments", [None, {"use_reentrant": False}, {"use_reentrant": True}], ids=str)
def test_training_gradient_checkpointing(arguments: dict[str, Any] | None) -> None:
    model, ids = make_model().train(), make_ids()
    model(ids, labels=ids).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)
    output = model(ids, labels=ids)
    assert output.past_key_values is None  # the blocks run twice and would enter their keys twice
    output.loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_gradient_checkpointing_enable_disable() -> None:
    model = cast(Any, make_model())
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@both
def test_inputs_embeds_matches_input_ids(name: str) -> None:
    model, ids = make_model(name), make_ids()
    assert torch.equal(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, model(ids).logits)
    with pytest.raises(ValueError, match="exactly one of"):
        model(ids, inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(ValueError, match="exactly one of"):
        model()


@pytest.mark.filterwarnings("ignore")  # the library explains how it starts the new rows
def test_resize_tokens_embeddings() -> None:
    model, ids = make_model(), make_ids() % 200
    before = model(ids).logits
    model.resize_token_embeddings(280)
    assert model(ids).logits.shape[-1] == model.config.vocab_size == 280
    assert torch.allclose(model(ids).logits[..., :256], before, atol=1e-5)
    model.resize_token_embeddings(200)
    assert torch.allclose(model(ids).logits, before[..., :200], atol=1e-5)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_model_get_set_embeddings() -> None:
    model = cast(Any, make_model())
    new = torch.nn.Embedding(10, 32)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings() is new
    assert model.get_output_embeddings() is model.lm_head


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@both
def test_eager_matches_sdpa_inference(name: str, padding: str) -> None:
    fused, plain, ids = make_model(name), make_model(name, attention="eager"), make_ids()
    assert (fused.config._attn_implementation, plain.config._attn_implementation) == ("sdpa", "eager")
    mask = torch.ones_like(ids)
    if padding != "none":
        mask[1, slice(None, 5) if padding == "left" else slice(7, None)] = 0
    found, expected = (model(ids, attention_mask=mask).logits[mask.bool()] for model in (fused, plain))
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.filterwarnings("ignore")  # deprecations inside both libraries, and that no kernel is used
def test_flex_attention_matches_eager_in_forward_and_generate() -> None:
    """Run without its kernel, which torch compiles for a minute."""
    ids, mask = make_ids(), torch.ones_like(make_ids())
    mask[1, :5] = 0
    with torch.compiler.set_stance("force_eager"), torch.no_grad():  # on a CPU, torch has no backward of it
        logits, texts = [], []
        for attention in ("eager", "flex_attention"):
            model = cast(Any, make_model(attention=attention))
            logits.append(model(ids, attention_mask=mask).logits[mask.bool()])
            texts.append(model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None))
    assert (logits[0] - logits[1]).abs().max() <= 1e-5 * logits[0].abs().max()
    assert torch.equal(*texts)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_custom_4d_attention_mask(attention: str) -> None:
    model, ids = make_model(attention=attention), make_ids(1)
    allowed = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
    mask = (
        allowed
        if attention == "sdpa"
        else torch.zeros(1, 1, 12, 12).masked_fill(~allowed, torch.finfo(torch.float32).min)
    )
    assert torch.allclose(model(ids, attention_mask=mask).logits, model(ids).logits, atol=1e-5)


@pytest.mark.parametrize("keep", [1, 3, torch.tensor([0, 11])], ids=str)
def test_forward_with_logits_to_keep(keep: int | torch.Tensor) -> None:
    model, ids = make_model(), make_ids()
    whole = model(ids).logits
    expected = whole[:, -keep:] if isinstance(keep, int) else whole[:, keep]
    assert torch.allclose(model(ids, logits_to_keep=keep).logits, expected, atol=1e-6)


def test_torch_compile_for_training() -> None:
    model, ids = make_model(plan="16x1, 32x1").train(), make_ids()
    compiled: Any = torch.compile(model, backend="aot_eager")
    assert torch.allclose(compiled(ids, labels=ids, use_cache=False).loss, model(ids, labels=ids).loss, atol=1e-5)


def test_importing_registers_the_models_with_the_auto_classes() -> None:
    assert isinstance(AutoModelForCausalLM.from_config(make_config()), StepsTransformerForCausalLM)
    assert isinstance(AutoModel.from_config(make_config()), StepsTransformerModel)
    assert StepsTransformerForCausalLM.config_class is StepsTransformerConfig
