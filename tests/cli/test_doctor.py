"""`stepsnet doctor`: models, files and runs, on the terminal, as JSON and as a page."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import stepsnet
from stepsnet.analysis.doctor.rules import Context, Finding
from stepsnet.cli.doctor import _for_model, _for_run, examine
from stepsnet.cli.main import main
from stepsnet.cli.resolve import load_with_inputs
from stepsnet.train.config import customise
from stepsnet.train.recipes import get_recipe
from stepsnet.train.typed import to_dict

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the digits, a few steps long."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    assert (
        main(["train", "digits", "iters=6", "batch_size=32", "eval.every=0", "eval.batch_size=360", f"out={out}"]) == 0
    )
    return out


def test_a_model_gets_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "test_steps_deit"]) == 0
    said = capsys.readouterr().out
    assert "test_steps_deit: as initialised (seed 0)" in said
    assert "4 random images of 3×32×32" in said
    assert "No problems found." in said
    assert "net.steps.2.blocks.1" in said
    assert "net.joins.1" in said


def test_a_run_is_examined_on_its_own_data(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(trained), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == "trained 6 steps"
    assert found["data"] == "8 validation samples of the run"
    assert found["healthy"] is True
    assert len(found["blocks"]) == 8


def test_the_page_of_a_run_has_its_curves(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "doctor.html"
    assert main(["doctor", str(trained), "--html", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    assert "Training loss" in page.read_text(encoding="utf-8")


def test_an_ill_run_is_found_ill_with_a_command_that_works(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run with a curve that does not fall: its command repeats the run with a lower learning rate."""
    run = tmp_path / "ill"
    shutil.copytree(trained, run)
    lines = [json.dumps({"step": step, "loss": 2.3, "grad_norm": 1.0}) + "\n" for step in range(1, 101)]
    (run / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    assert main(["doctor", str(run), "--json", "--strict"]) == 1
    (finding,) = [
        each for each in json.loads(capsys.readouterr().out)["findings"] if each["name"] == "loss-not-falling"
    ]
    assert finding["severity"] == "severe"
    program, train, *words = finding["command"].split()
    assert (program, train, words[0]) == ("stepsnet", "train", "digits")
    assert {"iters=6", "batch_size=32", "lr=0.00067"} <= set(words)
    assert main(["train", *words[:1], "--dry-run", *words[1:]]) == 0


def test_a_saved_file_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.safetensors"
    stepsnet.save_model(stepsnet.create_model("test_steps_transformer"), path)
    assert main(["doctor", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == "weights from the file"
    assert len(found["blocks"]) == 8


def test_a_model_with_findings_gets_a_recommended_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepsnet.analysis.doctor import rules

    monkeypatch.setattr(rules, "LIMITS", rules.Limits(gamma=2.0, shallow=0))  # above all models
    assert main(["doctor", "test_deit"]) == 0
    said = capsys.readouterr().out
    assert "Problems found: 1 warning." in said
    assert 'stepsnet.create_model("test_deit", plan=3, join="matched_grad")' in said


CUT = {"plan": "3", "join": "matched_grad"}


@pytest.mark.parametrize(
    "changes", [CUT | {"embed_dim": "24", "depth": "9"}, {"join": "matched_grad"}, {"residual": "rezero"}]
)
def test_what_to_create_is_the_model_at_hand_with_the_change(changes: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    stepsnet.save_model(stepsnet.create_model("test_deit", plan="24x9", embed_dim=24, num_classes=3), path)
    model = eval(_for_model(load_with_inputs(str(path)), changes), {"stepsnet": stepsnet})  # what a user would paste
    assert model.num_classes == 3
    assert model.plan == ("12x10, 16x5, 24x4" if "plan" in changes else "24x9")
    assert changes.items() <= {key: str(value) for key, value in model.default_cfg["options"].items()}.items()


def ill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, word: str) -> dict[str, Any]:
    """What the doctor says about a shortcut when everybody's is degraded by his line."""
    from stepsnet.analysis.doctor import rules

    monkeypatch.setattr(rules, "LIMITS", rules.Limits(gamma=2.0, shallow=0))
    capsys.readouterr()
    assert main(["doctor", word, "--json"]) == 0
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return next(finding for finding in findings if finding["name"] == "shortcut-degrades")


@pytest.mark.parametrize(
    ("name", "plan", "expected"),
    [
        ("test_swin", "8x1; 16x1; 32x5; 64x2", "8x1; 16x1; 16x6, 24x3, 32x2; 32x2, 44x1, 64x1"),
        ("test_resnet", "8x1; 16x1; 32x7; 64x2", "8x1; 16x1; 16x8, 22x4, 32x3; 32x2, 45x1, 64x1"),
    ],
)
def test_a_staged_model_with_a_plan_of_its_own_is_cut_at_its_own_sizes(
    name: str,
    plan: str,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "model.safetensors"
    stepsnet.save_model(stepsnet.create_model(name, plan=plan), path)
    model = eval(ill(capsys, monkeypatch, str(path))["command"], {"stepsnet": stepsnet})
    assert model.plan == expected


def test_a_model_too_narrow_for_steps_is_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ill(capsys, monkeypatch, "test_transformer")["command"]
    assert command == 'stepsnet.create_model("test_transformer", residual="layerscale")'


@pytest.mark.parametrize(
    ("model", "plan", "sizes"),
    [
        ("test_deit", "16x6", {"model_args.embed_dim=16", "model_args.depth=6"}),
        ("test_swin", "8x1; 16x1; 32x5; 64x2", {"model_args.embed_dim=8", "model_args.depths=[1, 1, 5, 2]"}),
    ],
)
def test_a_run_is_cut_into_steps_from_the_blocks_it_had(
    model: str,
    plan: str,
    sizes: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    width = plan.partition("x")[0]
    words = [
        f"model={model}",
        f"plan={plan}",
        f"model_args.embed_dim={width}",
        "iters=1",
        "batch_size=4",
        "eval.every=0",
        "workers=0",
    ]
    assert main(["train", "digits", *words, "eval.batch_size=360", f"out={tmp_path / 'run'}"]) == 0
    _, _, *again = shlex.split(ill(capsys, monkeypatch, str(tmp_path / "run"))["command"])
    assert sizes | {"plan=3", "join=matched_grad"} <= set(again)
    assert main(["train", again[0], "--dry-run", *again[1:]]) == 0


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        ("digits", "plan=5x1;10x1;20x1;40x1"), ("digits", "data.root=it's $HOME"), ("digits", "epochs=2"),
        ("digits", "iters=2"), ("mask_folder", "data.class_names=road,tree"), ("mask_folder", "data.mask_values=1,2"),
        ("python_docs", "plan=none"), ("python_docs", "eval.every=none"),
    ],
)  # fmt: skip
def test_a_shell_gets_the_same_run_from_the_command(recipe: str, word: str, tmp_path: Path) -> None:
    config = customise(get_recipe(recipe), [word])
    (tmp_path / "config.json").write_text(json.dumps(to_dict(config)))
    command = _for_run(tmp_path, {}).removeprefix("stepsnet train")
    said = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert customise(get_recipe(said[0]), said[1:]) == config


def test_a_run_of_many_processes_is_started_with_as_many(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(to_dict(customise(get_recipe("digits"), ["parallel=ddp"]))))
    (tmp_path / "environment.json").write_text('{"processes": 2}')
    assert (
        _for_run(tmp_path, {"join": "matched_grad"})
        == "torchrun --nproc-per-node 2 -m stepsnet train digits parallel=ddp join=matched_grad"
    )


def test_the_rules_know_that_a_run_clips(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Context] = []

    def check(_measured: object, context: Context) -> list[Finding]:
        told.append(context)
        return []

    monkeypatch.setattr("stepsnet.analysis.doctor.check", check)
    examine(load_with_inputs(str(trained)), trained)
    assert told[0].clip == 1.0  # as the recipe has it


def test_a_run_below_home_is_found(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(trained.parent))
    assert main(["doctor", f"~/{trained.name}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == "trained 6 steps"


@needs_timm
def test_a_model_of_timm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "timm:test_vit"]) == 0
    assert "timm's, as initialised" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("steps_deit_tinny", "nearest: steps_deit_tiny"),
        ("vit_tiny_patch16_224", "`stepsnet models` lists the names"),
        ("runs/none", "There is no file runs/none, and no model or run of that name"),
        pytest.param("timm:densenet121", "no list of similar modules", marks=needs_timm),
        pytest.param("hf:nothing", "no model type", marks=needs_transformers),
    ],
)
def test_usage_errors_are_one_sentence(word: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", word]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_a_run_of_an_empty_configuration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["doctor", str(tmp_path)]) == 2
    assert f"{tmp_path / 'config.json'} is not a configuration" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused_before_the_examination(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "test_deit", "--html", str(tmp_path / "nowhere" / "page.html")]) == 2
    said = capsys.readouterr()
    assert "there is no folder" in said.err
    assert said.out == ""


def test_strict_passes_the_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "test_deit", "--strict"]) == 0
    capsys.readouterr()


def test_doctor_says_that_it_shows_a_part_of_the_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    stepsnet.save_model(stepsnet.create_model("test_deit", plan="32x20"), tmp_path / "deep.safetensors")
    assert main(["doctor", str(tmp_path / "deep.safetensors")]) == 0
    assert "16 of 20 blocks, evenly spread; --html and --json have all." in capsys.readouterr().out
