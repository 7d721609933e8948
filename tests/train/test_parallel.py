"""Two processes give the losses of one, with DDP and FSDP2, and read each other's checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from stepsnet.models import load_model
from stepsnet.runs.folder import EVALUATIONS, METRICS, read_lines
from stepsnet.train.build import model_of
from stepsnet.train.checkpoint import latest, read_weights
from stepsnet.train.trainer import resume, train
from tests.train.synthetic import At, NoisyTask, in_processes, small_config

WORDS = ["iters=20", "batch_size=8", "optim.ema=0.9", "eval.every=10"]
MODES = ("none", "ddp", "fsdp")
HANDOVERS = [
    ("ddp", "fsdp"),
    ("fsdp", "ddp"),
    ("fsdp", "fsdp"),
    ("none", "fsdp"),
    ("none", "ddp"),
    ("ddp", "none"),
    ("fsdp", "none"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In this folder: runs "none", "ddp", "fsdp"; and "X-to-Y", stopped at step 15 under X and finished under Y."""
    root, task = tmp_path_factory.mktemp("runs"), NoisyTask()

    def start(mode: str) -> None:
        """A whole run, with a copy of its state after step 15."""
        copies = [root / f"{mode}-to-{goal}" for goal in MODES]
        copy = At(16, lambda: [shutil.copytree(root / mode, other) for other in copies])
        parts = ["accumulate=2"] if mode == "fsdp" else []
        train(small_config(root / mode, *WORDS, "checkpoint.every=15", f"parallel={mode}", *parts), [copy], task=task)

    def on_two() -> None:
        start("ddp")
        start("fsdp")
        for mode in ("ddp", "fsdp"):
            train(
                small_config(
                    root / f"sgd-{mode}", "optim.name=sgd", "model=test_resnet", "iters=3", f"parallel={mode}"
                ),
                task=task,
            )
        for origin, goal in HANDOVERS:
            if goal != "none":
                resume(root / f"{origin}-to-{goal}", [f"parallel={goal}"], task=task)

    start("none")
    in_processes(2, on_two)
    for origin in ("ddp", "fsdp"):
        resume(root / f"{origin}-to-none", task=task)
    return root


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_lines(folder / METRICS)]


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_losses_of_20_steps_equal_those_of_one_process(runs: Path, mode: str) -> None:
    assert len(losses(runs / mode)) == 20
    assert losses(runs / mode) == pytest.approx(losses(runs / "none"), abs=1e-5)


def test_ddp_and_fsdp_agree_with_batch_norm_and_sgd(runs: Path) -> None:
    """One process would not: batch norm sees half a batch in each of two."""
    assert losses(runs / "sgd-fsdp") == pytest.approx(losses(runs / "sgd-ddp"), abs=1e-5)


@pytest.mark.parametrize(("origin", "goal"), HANDOVERS)
def test_a_checkpoint_of_one_mode_continues_in_another(runs: Path, origin: str, goal: str) -> None:
    assert losses(runs / f"{origin}-to-{goal}") == pytest.approx(losses(runs / "none"), abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_validation_counts_every_sample_once(runs: Path, mode: str) -> None:
    found = read_lines(runs / mode / EVALUATIONS)
    assert [(line["step"], line["count"], line["ema_count"]) for line in found] == [(10, 13, 13), (20, 13, 13)]
    assert found[-1]["loss"] == pytest.approx(read_lines(runs / "none" / EVALUATIONS)[-1]["loss"], abs=1e-4)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["weights.safetensors", "weights_ema.safetensors"])
def test_final_weights_are_whole(runs: Path, mode: str, name: str) -> None:
    expected, found = (dict(load_model(runs / m / name).named_parameters()) for m in ("none", mode))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4)


def test_a_sharded_checkpoint_is_read_without_processes(runs: Path) -> None:
    newest = latest(runs / "fsdp" / "checkpoints")
    assert newest is not None
    assert json.loads((newest / "state.json").read_text())["layout"] == "sharded"
    model = model_of(small_config(runs, *WORDS), NoisyTask())
    read_weights(newest, model.state_dict())
    expected = load_model(runs / "fsdp" / "weights.safetensors").state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
