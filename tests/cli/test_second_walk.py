"""What a second walk through README and the examples of every `--help` found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stepsnet
from stepsnet.cli.console import print_text
from stepsnet.cli.main import main
from stepsnet.report.table import cell_width

QUICK = ["model=test_deit", "iters=1", "batch_size=64", "eval.batch_size=360"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("key", ["checkpoint.every=3", "checkpoint.keep=2", "nonfinite=skip", "parallel=ddp"])
def test_eval_refuses_keys_of_training(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "out=run"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", key]) == 2
    assert f"'{key.partition('=')[0]}' cannot change" in capsys.readouterr().err


def test_doctor_says_that_it_shows_a_part_of_the_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    stepsnet.save_model(stepsnet.create_model("test_deit", plan="32x20"), "deep.safetensors")
    assert main(["doctor", "deep.safetensors"]) == 0
    assert "16 of 20 blocks, evenly spread; --html and --json have all." in capsys.readouterr().out


def test_the_title_of_a_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["reproduce", "table8"]) == 0
    assert max(map(cell_width, capsys.readouterr().out.splitlines())) <= 80


def test_a_paragraph_keeps_its_indent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    print_text("  one two three four")
    assert capsys.readouterr().out == "  one two\n  three four\n"


def test_hours_of_a_study_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "fixed_flops", "--size", "paper", "--dry-run"]) == 0
    assert "e+0" not in capsys.readouterr().out


def test_a_deepened_model_of_this_package_is_trained_by_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deepen", "pretrained:steps_transformer_mini", "--blocks-added", "48x1", "--out", "deeper"]) == 0
    capsys.readouterr()
    assert main(["train", "python_docs", "model=deeper"]) == 2
    assert "give weights=deeper/weights.safetensors instead of model=" in capsys.readouterr().err


def test_the_detections_have_a_place_before_they_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text('{"task": "detection"}')
    assert main(["eval", "run", "--results", "nowhere/found.json"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err
