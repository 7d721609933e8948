"""Stepified and deepened models come back from disk with the same outputs, and loading executes nothing from the
folder."""

from __future__ import annotations

import copy
import inspect
import io
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from torch import nn

from stepsnet import UsageError, deepen, stepify, surgery_report, undeepen
from stepsnet.surgery import load, save, support
from stepsnet.surgery.stepify import find_host
from tests.models.tiny import check_same
from tests.surgery import tiny

TIMM = ["vit_small_patch16_224", "swin_tiny_patch4_window7_224", "resnet50"]
TRANSFORMERS = [
    "LlamaForCausalLM",
    "Gemma3ForCausalLM",
    "GPT2LMHeadModel",
    "SwinForImageClassification",
    "ConvNextForImageClassification",
]
CHANGES = ["stepify", "deepen"]


def changed(model: Any, change: str, **how: Any) -> Any:
    host = find_host(model, **how)
    if change == "stepify":
        stepify(model, support.two_steps(host), join="matched_grad", **how)
    else:
        deepen(model, f"{support.narrow_width(host, len(host.stages) - 1)}x2", at="every:2", **how)
    return tiny.stir(model).eval()


def outputs(model: Any, seed: int = 1) -> torch.Tensor:
    torch.manual_seed(seed)
    x = (
        torch.randn(2, 3, 32, 32)
        if getattr(model, "main_input_name", "pixel_values") == "pixel_values"
        else tiny.tokens()
    )
    with torch.no_grad():
        out = model(x)
    return out if isinstance(out, torch.Tensor) else out.logits


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TIMM)
def test_timm_models_come_back(name: str, change: str, tmp_path: Path) -> None:
    model = changed(support.make_timm(name).eval(), change, options=support.TIMM[name])
    save(model, tmp_path)
    again = load(tmp_path)
    check_same(again, model, outputs)
    assert surgery_report(again).plan_after == surgery_report(model).plan_after
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "stepsnet.json"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_models_come_back(name: str, change: str, tmp_path: Path) -> None:
    model = changed(support.make_transformers(name).eval(), change)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    check_same(again, model, outputs)
    made, loaded = surgery_report(model), surgery_report(again)
    assert (loaded.plan_after, loaded.params_before, loaded.params_after) == (
        made.plan_after, made.params_before, made.params_after
    )  # fmt: skip
    again.save_pretrained(tmp_path / "again")
    check_same(load(tmp_path / "again"), model, outputs)


def test_auto_classes_load_the_folder_when_its_code_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    model = changed(tiny.llama(), "stepify")
    model.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["auto_map"] == {"AutoModelForCausalLM": "modeling_stepsnet.LlamaForCausalLM"}
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    check_same(again, model, outputs)
    again.save_pretrained(tmp_path / "again")
    check_same(load(tmp_path / "again"), model, outputs)


def test_a_stepified_class_takes_the_options_of_the_plain_one(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=16, patch_size=8
    )
    model: Any = stepify(transformers.ViTModel(config, use_mask_token=True), "16x2, 32x1")
    assert inspect.signature(type(model)) == inspect.signature(transformers.ViTModel)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, use_mask_token=True)
    assert torch.equal(again.embeddings.mask_token, model.embeddings.mask_token)


def test_load_executes_no_code_of_the_folder(tmp_path: Path) -> None:
    changed(tiny.llama(), "stepify").save_pretrained(tmp_path)
    (tmp_path / "modeling_stepsnet.py").write_text("raise SystemExit('executed')\n")
    load(tmp_path)


def test_an_undeepened_model_is_a_plain_one_again(tmp_path: Path) -> None:
    model = changed(tiny.llama(), "deepen")
    assert model.config.num_hidden_layers == 6
    undeepen(model).save_pretrained(tmp_path)
    plain = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert type(model) is transformers.LlamaForCausalLM
    check_same(plain.eval(), model, outputs)


def test_a_changed_model_survives_deepcopy_and_pickle() -> None:
    model = changed(tiny.llama(), "deepen")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(outputs(other), outputs(model))
        assert len(undeepen(other).model.layers) == 4


def test_the_attention_implementation_can_be_changed_in_all_blocks() -> None:
    model = changed(tiny.llama(), "stepify")
    expected = outputs(model)
    model.set_attn_implementation("eager")
    assert {layer.self_attn.config._attn_implementation for layer in model.model.layers} == {"eager"}
    torch.testing.assert_close(outputs(model), expected)
    assert len(model(tiny.tokens(), output_attentions=True).attentions) == len(model.model.layers)


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_timms_pooling_comes_back(name: str, tmp_path: Path) -> None:
    plain = timm.create_model(name, num_classes=4, global_pool="max", **support.TIMM[name])
    model = changed(plain, "stepify", options=support.TIMM[name])
    save(model, tmp_path)
    check_same(load(tmp_path), model, outputs)


def test_a_vit_of_any_image_size_comes_back(tmp_path: Path) -> None:
    options = {"patch_size": 8}
    model = stepify(tiny.vit(dynamic_img_size=True), tiny.VIT_PLAN, options=options).eval()
    save(model, tmp_path)
    check_same(load(tmp_path), model, lambda network: network(torch.ones(1, 3, 48, 48)))


def test_a_new_head_of_a_timm_model_comes_back(tmp_path: Path) -> None:
    model = changed(tiny.vit(), "stepify", options={"patch_size": 8})
    model.reset_classifier(7)
    save(model, tmp_path)
    check_same(load(tmp_path), model, outputs)


def test_an_option_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    options = {"act_layer": nn.ReLU}
    model = stepify(tiny.vit(**options), tiny.VIT_PLAN, options=options)
    with pytest.raises(UsageError, match="a value of options= cannot be written as JSON"):
        save(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_state_dicts_of_timm_fit_a_model_stepified_again() -> None:
    first, second = (changed(tiny.vit(), "stepify") for _ in range(2))
    second.load_state_dict(first.state_dict())
    assert torch.equal(outputs(first), outputs(second))


def test_what_cannot_be_saved_or_loaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was not changed by stepify or deepen"):
        save(tiny.vit(), tmp_path)
    with pytest.raises(UsageError, match=r"neither stepsnet\.json nor config\.json"):
        load(tmp_path)
    tiny.llama().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="has no entry 'stepsnet'"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"stepsnet": {}, "architectures": ["logging"]}))
    with pytest.raises(UsageError, match="transformers has no model class 'logging'"):
        load(tmp_path)
