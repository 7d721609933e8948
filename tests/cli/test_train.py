"""The commands around training: what they say, what they leave behind, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stepsnet.cli import train as command
from stepsnet.cli.main import main
from stepsnet.errors import RunFailed
from stepsnet.train.callbacks import AnyCallback, Callback
from stepsnet.train.recipes import RECIPES
from stepsnet.train.trainer import Trainer

QUICK = ["model=test_deit", "batch_size=64", "eval.every=0", "eval.batch_size=360"]


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0
    said = capsys.readouterr().out
    assert [name for name in RECIPES if name not in said] == []


def test_help_lists_the_recipes_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    said = capsys.readouterr().out
    assert [name for name in RECIPES if name not in said] == []


def test_listing_recipes_needs_no_torch() -> None:
    code = "import sys; from stepsnet.cli.main import main; main(['train']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_dry_run_says_everything_and_does_nothing(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["train", "digits", "--dry-run", "model=test_deit", "plan=2", "--json", "epochs=2"]) == 0
    )  # in any order
    found = json.loads(capsys.readouterr().out)
    assert found["config"]["model"] == "test_deit"
    assert found["model"]["params"] > 10_000
    assert found["model"]["macs"] > found["model"]["params"]
    assert found["data"]["train_images"] == 1437
    assert found["steps"]["total"] == 2 * found["steps"]["per_epoch"] == 2 * (1437 // 64)
    assert main(["train", "digits", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert all(
        word in said for word in ("batch_size = 64", "data.kind = digits", "MACs", "train_images 1437", "660 in all")
    )
    assert list(at_home.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "digit"], "no recipe 'digit'; nearest: digits"),
        (["train", "digits", "modle=x"], "no key 'modle'; nearest: model"),
        (["train", "digits", "batch_size=big"], "batch_size takes a whole number, not 'big'"),
        (["train", "digits", "model=test_dei"], "nearest: test_deit"),
        (["train", "digits", "batch_size=5000"], "above 1437, the number of training samples"),
        (["train", "digits", "parallel=ddp"], "torchrun --nproc-per-node"),
        (["train", "digits", "device=abacus"], "device=abacus is not available"),
        (["train", "digits", "device=vulkan"], "device=vulkan is not available: this build of PyTorch does not"),
        (["train", "digits", "out=/dev/null/run"], "/dev/null/run cannot be used as a run folder: Not a directory"),
        (["train", "digits", "out=/proc/run"], "/proc/run cannot be used as a run folder"),
        (["train", "cifar10"], "data.root"),
        (["resume", "nowhere"], "There is no run in nowhere"),
        (["eval", "nowhere"], "There is no run in nowhere"),
        (["runs", "nowhere"], "There is no folder nowhere"),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert list(at_home.iterdir()) == []


def test_a_whole_run_from_train_to_runs(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "iters=3", "optim.ema=0.9", "--json"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    out = Path("runs/digits-test_deit-1")
    assert (result["out"], result["step"], result["finished"]) == (str(out), 3, True)
    assert "step 3/3  loss " in said.err
    assert "images/s" in said.err
    assert "left" in said.err
    kept = {path.name for path in out.iterdir()}
    assert kept >= {"config.json", "environment.json", "metrics.jsonl", "eval.jsonl", "gamma.jsonl", "report.html"}
    assert kept >= {"tensorboard", "checkpoints", "weights.safetensors", "weights_ema.safetensors", "result.json"}
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]

    assert main(["train", "digits", *QUICK, "iters=3", f"out={out}"]) == 2
    assert "holds a finished run, which is not overwritten" in capsys.readouterr().err

    assert main(["eval", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["top1"] == pytest.approx(result["metrics"]["top1"])
    assert found["samples"] == 360
    assert main(["eval", str(out), "--ema"]) == 0
    averaged = capsys.readouterr().out
    assert f"top1 {result['metrics']['ema_top1']:.4g}" in averaged
    assert averaged.endswith("on 360 samples\n")
    assert main(["resume", str(out)]) == 0
    assert "Finished after 3 steps" in capsys.readouterr().out
    assert main(["resume", str(out), "lr=5"]) == 2
    assert "has finished after 3 steps; other keys can change only together with" in capsys.readouterr().err

    assert main(["runs", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert {key: row[key] for key in ("run", "recipe", "model", "state", "step")} == {
        "run": str(out),
        "recipe": "digits",
        "model": "test_deit",
        "state": "finished",
        "step": 3,
    }
    assert main(["runs"]) == 0
    assert "digits-test_deit-1" in capsys.readouterr().out


def test_the_environment_names_no_host(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "iters=1", "out=run"]) == 0
    found = json.loads(Path("run/environment.json").read_text())
    assert {"stepsnet", "torch", "python", "git_commit", "threads", "seed"} <= found.keys()
    assert os.uname().nodename not in json.dumps({key: value for key, value in found.items() if key != "command"})


class ActAtStep2(Callback):
    """Does something at step 2."""

    def __init__(self, action: Any) -> None:
        self.action = action

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        if step == 2:
            self.action()


def act_at_step_2(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    callbacks: list[AnyCallback] = [ActAtStep2(action)]
    monkeypatch.setattr(command, "make_callbacks", lambda _track: callbacks)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(
    number: int, code: int, at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    act_at_step_2(monkeypatch, lambda: os.kill(os.getpid(), number))
    assert main(["train", "digits", *QUICK, "iters=5", "out=run"]) == code
    assert "Stopped at step 3 of 5 and saved. Continue with:\n  stepsnet resume run\n" in capsys.readouterr().out
    assert main(["train", "digits", *QUICK, "iters=5", "out=run"]) == 2
    assert "`stepsnet resume run` continues it" in capsys.readouterr().err
    assert main(["eval", "run"]) == 0
    capsys.readouterr()
    assert main(["resume", "run", "iters=8"]) == 2
    assert "run has not finished; iters and epochs can only extend a finished run." in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(at_home)
    assert main(["resume", "run", "workers=1"]) == 0
    assert "Finished after 5 steps" in capsys.readouterr().out


def test_a_run_that_fails_says_why_and_leaves_with_1(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RunFailed("The disk is full.")

    act_at_step_2(monkeypatch, fail)
    assert main(["train", "digits", *QUICK, "iters=5", "out=run"]) == 1
    assert capsys.readouterr().err.endswith("The disk is full.\n")


def test_a_folder_that_is_not_a_run_is_not_changed(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/precious.txt").write_text("keep")
    assert main(["train", "digits", *QUICK, "out=mine"]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in Path("mine").iterdir()] == ["precious.txt"]


def test_two_processes_from_the_command_line(at_home: Path) -> None:
    """`torchrun -m stepsnet train … parallel=fsdp`: one folder, one output, whole weights."""
    words = [
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "stepsnet",
        "train",
        "digits",
        *QUICK,
        "iters=2",
        "parallel=fsdp",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
        env=environment,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["finished"] is True
    assert sorted(path.name for path in Path("runs").iterdir()) == ["digits-test_deit-1"]
    assert main(["eval", "runs/digits-test_deit-1"]) == 0


def test_a_dry_run_shows_values_as_the_command_line_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=test_deit", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [
        line for line in ("compile = false", "optim.betas = 0.9,0.999", "data.root = empty") if line not in lines
    ] == []
