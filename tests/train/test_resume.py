"""A run stopped anywhere and continued equals the uninterrupted one by hash: weights, average, optimiser, losses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.runs.folder import create
from stepsnet.train.config import TrainConfig, customise
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import _interrupted_folder, resume, train
from stepsnet.train.typed import to_dict
from tests.train.synthetic import (
    At,
    NoisyTask,
    PoweredOffError,
    fingerprint,
    in_processes,
    power_off,
    small_config,
    terminate,
)


def digits(out: Path) -> TrainConfig:
    """All randomness is on: Mixup, CutMix, augmentation, stochastic depth. EMA, two workers, 5 steps per epoch."""
    words = [
        "batch_size=256",
        "iters=9",
        "workers=2",
        "drop_path=0.2",
        "augment.mixup=0.8",
        "augment.cutmix=1.0",
        "optim.ema=0.9",
    ]
    return customise(
        get_recipe("digits"), [*words, "eval.every=0", "eval.batch_size=360", "checkpoint.every=3", f"out={out}"]
    )


def language(out: Path) -> TrainConfig:
    text = out.parent / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 40, encoding="utf-8")
    config = dataclasses.replace(
        get_recipe("python_docs"), data=DataConfig(kind="text", root=str(text), seq_len=16), model_args={}
    )
    words = [
        "model=test_steps_transformer",
        "plan=none",
        "batch_size=16",
        "iters=9",
        "workers=1",
        "optim.ema=0.9",
        "eval.every=0",
    ]
    return customise(config, [*words, "checkpoint.every=3", f"out={out}"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Fingerprints of the uninterrupted runs."""
    prints = {}
    for make in (digits, language):
        out = tmp_path_factory.mktemp(make.__name__) / "run"
        train(make(out))
        prints[make.__name__] = fingerprint(out)
    return prints


@pytest.mark.parametrize("step", [1, 5, 7])
@pytest.mark.parametrize("make", [digits, language])
def test_a_resumed_run_equals_an_uninterrupted_one(make, step, uninterrupted, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config = make(tmp_path / "run")
    first = train(config, [At(step, terminate)])
    assert (first.finished, first.step) == (False, step + 1)  # the signal arrived after its step, so one more was done
    assert resume(tmp_path / "run").finished
    assert fingerprint(tmp_path / "run") == uninterrupted[make.__name__]


def test_a_kill_between_checkpoints_repeats_the_steps_after_the_last_one(uninterrupted, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PoweredOffError):
        train(digits(tmp_path / "run"), [At(8, power_off)])
    resume(tmp_path / "run")
    assert fingerprint(tmp_path / "run") == uninterrupted["digits"]
    assert fingerprint(tmp_path / "run")["steps"] == list(range(1, 10))


def test_the_number_of_workers_makes_no_difference(uninterrupted, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    train(digits(tmp_path / "run"), [At(4, terminate)])
    resume(tmp_path / "run", ["workers=0"])
    assert fingerprint(tmp_path / "run") == uninterrupted["digits"]


def test_killed_before_the_first_checkpoint_starts_over(tmp_path: Path) -> None:
    task = NoisyTask()
    train(small_config(tmp_path / "uninterrupted"), task=task)
    with pytest.raises(PoweredOffError):
        train(small_config(tmp_path / "run"), [At(3, power_off)], task=task)
    assert resume(tmp_path / "run", task=task).finished
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "uninterrupted")


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_sgd_and_batch_norm_resume_exactly(momentum: float, tmp_path: Path) -> None:
    words = ["model=test_resnet", "optim.name=sgd", f"optim.momentum={momentum}", "lr=0.05", "iters=6"]
    train(small_config(tmp_path / "uninterrupted", *words), task=NoisyTask())
    train(small_config(tmp_path / "run", *words), [At(3, terminate)], task=NoisyTask())
    resume(tmp_path / "run", task=NoisyTask())
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "uninterrupted")


def test_two_resumed_processes_equal_uninterrupted_ones(tmp_path: Path) -> None:
    """DDP with workers, stochastic depth, averaging and accumulation; the signal reaches one process only."""
    words = [
        "parallel=ddp",
        "drop_path=0.2",
        "optim.ema=0.9",
        "workers=1",
        "accumulate=2",
        "checkpoint.every=5",
        "model=test_resnet",
    ]

    def work() -> list[int]:
        import os

        steps = [train(small_config(tmp_path / "uninterrupted", *words), task=NoisyTask()).step]
        disturb = [At(6, terminate)] if os.environ["RANK"] == "0" else []
        steps.append(train(small_config(tmp_path / "run", *words), disturb, task=NoisyTask()).step)
        steps.append(resume(tmp_path / "run", task=NoisyTask()).step)
        return steps

    assert in_processes(2, work) == [[12, 7, 12]] * 2
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "uninterrupted")


def test_a_restart_finds_its_run_among_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = get_recipe("digits")
    create(Path("runs/mine"), to_dict(config) | {"out": "runs/mine"})
    create(Path("runs/other_version"), to_dict(config) | {"a_key_of_later": 1})
    create(Path("runs/model"), {"model_type": "llama"})
    assert _interrupted_folder(config) == Path("runs/mine")
