"""`stepsnet export`: names, saved models and runs become checked files, and mistakes get a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stepsnet.cli.main import main
from stepsnet.export import load_torch_export, torch_export_facts
from stepsnet.models import create_model, save_model
from tests.models.tiny import shake

QUICK = ["--format", "torch-export"]


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_registered_name_becomes_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "test_resnet", *QUICK]) == 0
    said = capsys.readouterr()
    assert "its weights are random" in said.out
    assert "test_resnet.pt2" in said.out
    assert "batch 1 … 4096" in said.out
    assert "input 3×3×32×32" in said.out
    assert said.err == ""
    assert load_torch_export("test_resnet.pt2")(torch.randn(5, 3, 32, 32)).shape == (5, 10)


def test_json_says_what_varies_and_how_far_the_file_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "test_resnet", *QUICK, "--dynamic", "--json", "--out", "any.pt2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == "any.pt2"
    assert found["free"]["width"] == {"from": 32, "to": 1024, "step": 1}
    assert [2, 3, 33, 32] in [checked["shape"] for checked in found["checked"]]
    assert max(checked["difference"] for checked in found["checked"]) <= 1e-4


def test_a_saved_model_becomes_a_file_with_its_norms_folded() -> None:
    model = shake(create_model("test_steps_resnet")).eval()
    save_model(model, "mine.safetensors")
    assert main(["export", "mine.safetensors", *QUICK, "--fold", "--image-size", "40x48"]) == 0
    run, x = load_torch_export("mine.pt2"), torch.randn(1, 3, 40, 48)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=0, atol=1e-4)
    assert not any("running_mean" in name for name in run.state_dict())


def test_an_exported_run_contains_its_classes(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "model=test_resnet",
        "batch_size=64",
        "iters=1",
        "eval.every=0",
        "eval.batch_size=360",
        "workers=0",
        "out=first",
    ]
    assert main(["train", "digits", *words]) == 0
    capsys.readouterr()
    assert main(["export", "first", *QUICK]) == 0
    assert "random" not in capsys.readouterr().out
    facts = torch_export_facts("first.pt2")
    assert json.loads(facts["class_names"]) == [str(digit) for digit in range(10)]
    assert json.loads(facts["mean"]) != pytest.approx([0.485, 0.456, 0.406])


def test_deit_says_why_its_size_is_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "test_deit", *QUICK, "--dynamic"]) == 2
    said = capsys.readouterr().err
    assert "--dynamic has no effect on test_deit: the batch may always vary" in said
    assert "learns positions for one size" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["test_resent"], "There is no model, run or file 'test_resent'; nearest: test_resnet"),
        (["gone.safetensors"], "There is no file gone.safetensors"),
        (["folder"], "folder holds neither a run nor weights"),
        (["dense.safetensors"], "is for detection; only classifiers and language models are exported"),
        (["test_swin", "--fold"], "nothing to fold in a swin"),
        (["test_deit", "--ema"], "--ema is for runs"),
        (["test_deit", "--image-size", "big"], "--image-size is 'big'"),
        (["test_deit", "--image-size", "0"], "--image-size is '0'"),
        (["test_transformer", "--image-size", "32"], "takes text"),
        (["test_deit", "--out", "model.pt2"], "a file of format onnx ends in .onnx"),
        (["test_deit", "--format", "tflite"], "invalid choice: 'tflite'"),
    ],
)
def test_usage_errors_are_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file

    Path("folder").mkdir()
    header = {"stepsnet_format": "1", "name": "detection/test_swin", "plan": "", "options": "{}"}
    save_file({"x": torch.zeros(1)}, "dense.safetensors", header)
    assert main(["export", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_is_not_a_run_does_not_hide_a_registered_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_resnet").mkdir()
    assert main(["export", "test_resnet", *QUICK]) == 0
    assert "its weights are random" in capsys.readouterr().out


def test_a_saved_model_below_home_becomes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save_model(create_model("test_resnet"), "mine.safetensors")
    assert main(["export", "~/mine.safetensors", *QUICK]) == 0
    assert Path("mine.pt2").is_file()
