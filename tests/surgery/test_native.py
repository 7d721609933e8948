"""deepen of models of this package: they stay models of this package, with a longer plan."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepsnet import UsageError, create_model, deepen, load_model, save_model, stepify, surgery_report, undeepen
from stepsnet.cli.main import main
from stepsnet.data.text.vocabulary import ByteVocabulary
from stepsnet.models.deit import DeiT
from stepsnet.models.language import Transformer
from stepsnet.surgery import save
from stepsnet.tasks.generation import Sampling, generate


@pytest.mark.parametrize(
    ("name", "new", "plan"),
    [
        ("test_steps_transformer", "16x2", "16x6, 24x2, 32x2"),
        ("test_steps_transformer", ";;32x1", "16x4, 24x2, 32x3"),
        ("test_steps_deit", "16x2", "16x6, 22x2, 32x2"),
        ("test_deit", "32x1", "32x5"),
    ],
)
def test_outputs_stay_equal_and_the_plan_grows(name: str, new: str, plan: str, tmp_path: Path) -> None:
    model = create_model(name).eval()
    x = torch.zeros_like(model.dummy_input(), device="cpu")
    before = model(x)
    deepen(model, new, verify=x)
    assert torch.equal(model(x), before)
    assert model.plan == plan
    save_model(model, tmp_path / "deeper.safetensors")
    assert load_model(tmp_path / "deeper.safetensors").plan == plan
    torch.testing.assert_close(load_model(tmp_path / "deeper.safetensors").eval()(x), before, atol=1e-5, rtol=1e-5)
    undeepen(model)
    assert model.plan == create_model(name, device="meta").plan


def test_generation_with_a_cache_counts_the_new_blocks() -> None:
    plain = create_model("test_steps_transformer").eval()
    deeper = create_model("test_steps_transformer").eval()
    deeper.load_state_dict(plain.state_dict())
    deepen(deeper, "16x2")
    texts = []
    for model in (plain, deeper):
        assert isinstance(model, Transformer)
        greedy = Sampling(temperature=0.0)
        pieces = generate(model, ByteVocabulary(), ["ab"], tokens=6, sampling=greedy, stops=[], seed=0)
        texts.append("".join(piece.text for piece in pieces))
    assert texts[0] == texts[1]


def test_a_width_that_no_step_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must have the width of its step \(16, 24, 32\), not 8"):
        deepen(create_model("test_steps_transformer"), "8x2")


def test_models_of_several_stages_are_refused() -> None:
    with pytest.raises(UsageError, match="DeiT and language models"):
        deepen(create_model("test_steps_swin"), "12x1")


@pytest.mark.parametrize("residual", ["layernorm_scaling", "x0_injection"])
def test_residuals_that_depend_on_the_position_of_a_block_are_refused(residual: str) -> None:
    with pytest.raises(UsageError, match="whose residual is layernorm_scaling or x0_injection"):
        deepen(create_model("test_deit", residual=residual), "32x1")


def test_a_step_without_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="whose steps all have blocks, not the plan '16x4, 32x0'"):
        deepen(create_model("test_deit", plan="16x4, 32x0"), "16x1")


def test_a_model_that_create_model_did_not_make_is_refused() -> None:
    with pytest.raises(UsageError, match="create_model, which did not make this DeiT"):
        deepen(DeiT(embed_dim=32, depth=2, img_size=32, patch_size=8), "32x1")


def test_the_list_of_features_follows_the_blocks() -> None:
    model = create_model("test_steps_deit")
    assert isinstance(model, DeiT)
    before = list(model.feature_info)
    names = {module: name for name, module in deepen(model, "16x2").named_modules()}
    assert model.feature_info.module_name() == [names[block] for block in model.blocks_in_order()]
    assert undeepen(model).feature_info == before


def test_surgery_save_names_the_function_that_saves_own_models(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"save it with stepsnet\.save_model"):
        save(deepen(create_model("test_deit"), "32x1"), tmp_path)


def test_stepify_says_that_own_models_take_a_plan() -> None:
    with pytest.raises(UsageError, match="give the plan to create_model"):
        stepify(create_model("test_deit"), 2)


def test_the_report_has_the_plan_as_the_model_writes_it() -> None:
    model = create_model("test_steps_transformer")
    assert surgery_report(deepen(model, "16x1")).plan_after == model.plan == "16x5, 24x2, 32x2"


def test_no_new_block_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="'16x0' adds no block"):
        deepen(create_model("test_steps_transformer"), "16x0")


@pytest.mark.parametrize("words", [["--heads", "keep_count"], ["--blocks", "layers"]])
def test_options_for_other_libraries_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deeper"
    assert main(["deepen", "test_steps_transformer", "--blocks-added", "16x1", "--out", str(out), *words]) == 2
    assert f"{words[0]} is for models of timm and transformers" in capsys.readouterr().err
    assert not out.exists()


def test_the_shipped_language_model_is_deepened_on_the_command_line(tmp_path: Path) -> None:
    words = ["deepen", "pretrained:steps_transformer_mini", "--blocks-added", "48x2", "--out", str(tmp_path / "deeper")]
    assert main(words) == 0
    assert load_model(tmp_path / "deeper" / "weights.safetensors").plan == "48x8, 64x3, 96x3"
