"""Trackers get configuration and metrics of a run, and continue a resumed run under its name."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stepsnet.cli.main import main

QUICK = ["model=test_deit", "batch_size=64", "eval.every=0", "eval.batch_size=360", "out=run"]
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is called in modules that stand for wandb and mlflow."""
    made: Calls = []

    def recorded(name: str, result: object = None) -> Any:
        def function(*arguments: Any, **options: Any) -> object:
            made.append((name, {**(arguments[0] if arguments and isinstance(arguments[0], dict) else {}), **options}))
            return result

        return function

    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    run = SimpleNamespace(id="w1", log=recorded("wandb.log"), finish=recorded("wandb.finish"))
    vars(wandb)["init"] = recorded("wandb.init", run)
    for name in ("set_experiment", "log_params", "log_metrics", "end_run"):
        vars(mlflow)[name] = recorded(f"mlflow.{name}")
    vars(mlflow)["MlflowException"] = ConnectionError
    vars(mlflow)["start_run"] = recorded("mlflow.start_run", SimpleNamespace(info=SimpleNamespace(run_id="m1")))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return made


def of(calls: Calls, name: str) -> list[dict[str, Any]]:
    return [given for called, given in calls if called == name]


def test_both_trackers_get_the_run_and_its_continuation(calls: Calls) -> None:
    track = ["--track", "wandb", "--track", "mlflow"]
    assert main(["train", "digits", *QUICK, "iters=2", *track]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    evaluated = json.loads(Path("run/eval.jsonl").read_text())
    for log in ("wandb.log", "mlflow.log_metrics"):
        trained, valid = of(calls, log)[:2], of(calls, log)[2]
        assert [(given["step"], given["train/loss"]) for given in trained] == [(n["step"], n["loss"]) for n in lines]
        assert (valid["step"], valid["valid/top1"]) == (2, evaluated["top1"])
    (started,) = of(calls, "wandb.init")
    assert (started["id"], started["config"]["model"]) == (None, "test_deit")
    assert of(calls, "mlflow.log_params")[0]["optim.clip"] == 1.0
    assert of(calls, "wandb.finish") == [{"exit_code": 0}]
    assert of(calls, "mlflow.end_run") == [{"status": "FINISHED"}]

    calls.clear()
    assert main(["resume", "run", "iters=3", *track]) == 0
    assert of(calls, "wandb.init")[0]["id"] == "w1"
    assert of(calls, "mlflow.start_run")[0]["run_id"] == "m1"
    assert of(calls, "mlflow.log_params") == []
    assert of(calls, "wandb.log")[0]["step"] == 3


def test_a_run_that_fails_is_reported_as_failed(calls: Calls) -> None:
    assert main(["train", "digits", *QUICK, "iters=2", "lr=1e30", "schedule.warmup_epochs=0", "optim.clip=0",
                 "--track", "wandb", "--track", "mlflow"]) == 1  # fmt: skip
    assert of(calls, "wandb.finish") == [{"exit_code": 1}]
    assert of(calls, "mlflow.end_run") == [{"status": "KILLED"}]


@pytest.mark.usefixtures("calls")
def test_a_server_that_does_not_answer_is_reported_before_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: str) -> None:
        raise ConnectionError("no answer\nmore")

    monkeypatch.setattr("mlflow.set_experiment", refuse)
    assert main(["train", "digits", *QUICK, "--track", "mlflow"]) == 2
    assert capsys.readouterr().err == "MLflow cannot be used: no answer\n"
    assert not Path("run").exists()


def test_an_unknown_tracker_and_a_missing_library_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", *QUICK, "--track", "wandbb"]) == 2
    assert capsys.readouterr().err == "There is no tracker 'wandbb'; nearest: wandb; there are wandb, mlflow.\n"
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", "digits", *QUICK, "--track", "wandb"]) == 2
    assert "pip install '.[track]'" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_the_real_library_records_a_run_without_a_server(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed; it is in no lock file")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", Path("mlruns").absolute().as_uri())
    assert main(["train", "digits", *QUICK, "iters=1", "--track", library]) == 0
    kept = json.loads(Path("run/trackers.json").read_text())[library]
    if library == "mlflow":
        client = importlib.import_module("mlflow").MlflowClient()
        assert [metric.step for metric in client.get_metric_history(kept, "train/loss")] == [1]
    else:
        assert list(Path("run/wandb").glob("offline-run-*"))
