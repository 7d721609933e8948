"""`stepsnet analyze`, called as a user calls it, on a name and on a small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepsnet.cli.main import main
from stepsnet.models import create_model, save_model
from stepsnet.train.config import customise
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps on digits."""
    out = tmp_path_factory.mktemp("analyze") / "run"
    words = ["model=test_steps_deit", "iters=3", "batch_size=16", "workers=0", f"out={out}"]
    train(customise(get_recipe("digits"), words))
    return out


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["analyze", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("what", "key"), [("gamma", "gamma"), ("gradients", "dz"), ("contribution", "norm"), ("width", "rank")]
)
def test_a_registered_name_is_analysed(capsys: pytest.CaptureFixture[str], what: str, key: str) -> None:
    found = asked(capsys, what, "test_steps_deit")
    assert len(found[key]) == (3 if what == "contribution" else 8)
    assert "as initialised (seed 0)" in found["measured_on"]
    assert "initialisation: its own" in found["measured_on"]


@pytest.mark.parametrize("what", ["gamma", "gradients", "contribution", "width"])
def test_a_run_is_analysed_on_its_validation_data(capsys: pytest.CaptureFixture[str], trained: Path, what: str) -> None:
    assert main(["analyze", what, str(trained)]) == 0
    said = capsys.readouterr().out
    assert "trained 3 steps; 8 validation samples of the run" in said
    assert "the run's own" in said or what != "gradients"


def test_paths_are_measured_by_the_task(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    found = asked(capsys, "paths", str(trained))
    evaluated = json.loads((trained / "eval.jsonl").read_text().splitlines()[-1])
    assert found["slow"][0] == found["fast"][0] == pytest.approx(evaluated["top1"])
    assert len(found["sizes"]) == 6


def test_drops_are_a_table(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    assert main(["analyze", "drops", str(trained), "--batch", "100"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("none", "step 1", "step 3", "top1", "validation samples"))


def test_a_saved_file_is_analysed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_model(create_model("test_steps_swin"), tmp_path / "model.safetensors")
    found = asked(capsys, "gamma", str(tmp_path / "model.safetensors"))
    assert set(found["stage"]) == {0, 1, 2, 3}


def test_a_model_of_timm_is_analysed(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "gamma", "timm:test_vit", "--batch", "1", "--start", "1")
    assert found["block"][0] == 2


@pytest.mark.parametrize(
    ("name", "batch"), [("test_steps_deit", "9"), ("test_steps_transformer", "9"), ("test_steps_deit", "1")]
)
def test_any_number_of_random_inputs_will_do(capsys: pytest.CaptureFixture[str], name: str, batch: str) -> None:
    assert f"{batch} random inputs" in asked(capsys, "gamma", name, "--batch", batch)["measured_on"]


@pytest.mark.parametrize("what", ["gamma", "gradients", "contribution", "width", "paths", "drops"])
def test_every_subject_can_be_drawn(
    capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path, what: str
) -> None:
    chart = tmp_path / f"{what}.svg"
    assert main(["analyze", what, str(trained), "--plot", str(chart)]) == 0
    assert chart.read_bytes().startswith(b"<svg")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gama", "test_deit"], "nearest: gamma"),
        (["gamma", "tset_deit"], "test_deit"),
        (["paths", "test_steps_deit"], "needs the folder of a run"),
        (["drops", "timm:test_vit"], "needs the folder of a run"),
        (["gamma", "test_deit", "--start", "4"], "start=4"),
        (["gradients", "test_deit", "--start", "2"], "--start is for gamma"),
        (["gamma", "test_deit", "--batch", "0"], "--batch"),
        (["gamma", "test_deit", "--data", "somewhere"], "--data is for paths and drops"),
        (["gamma", "test_deit", "--plot", "map.gif"], "must end in .svg"),
        (["gamma", "test_deit", "--plot", "nowhere/map.svg"], "there is no folder nowhere"),
    ],
)
def test_usage_errors_are_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["analyze", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.out == ""


def test_the_samples_of_a_run_are_its_own(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    assert main(["analyze", "gamma", str(trained), "--batch", "3"]) == 2
    assert "--batch is for random inputs" in capsys.readouterr().err


def test_a_run_without_steps_has_nothing_to_take_away(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["model=test_deit", "iters=1", "batch_size=16", "workers=0", f"out={tmp_path / 'run'}"]
    train(customise(get_recipe("digits"), words))
    assert main(["analyze", "drops", str(tmp_path / "run")]) == 2
    assert "no StepsNet of several steps" in capsys.readouterr().err


def test_embedded_data_cannot_be_redirected(capsys: pytest.CaptureFixture[str], trained: Path, tmp_path: Path) -> None:
    assert main(["analyze", "drops", str(trained), "--data", str(tmp_path)]) == 2
    assert "digits, is part of stepsnet" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["gamma", "drops"])
def test_a_run_below_home_is_found(
    capsys: pytest.CaptureFixture[str], trained: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("HOME", str(trained.parent))
    assert str(trained) in asked(capsys, what, f"~/{trained.name}")["measured_on"]


def test_a_chart_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", "gamma", "test_deit", "--plot", "gamma.svg"]) == 0
    assert capsys.readouterr().out.endswith("\nChart: gamma.svg\n")
