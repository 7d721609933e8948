"""Checkpoints: complete or absent after any interruption, and they run no code when they are read."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepsnet.errors import RunFailed, UsageError
from stepsnet.files import explain_full_disk
from stepsnet.train.checkpoint import Checkpoints, Weights, latest, read_optimizer
from stepsnet.train.distributed import Processes, like, model_tensors
from stepsnet.train.trainer import resume, train
from tests.train.synthetic import At, NoisyTask, PoweredOffError, in_processes, power_off, small_config, terminate


def make_weights(value: float) -> Weights:
    """A tiny model after one update, filled with `value` so that checkpoints can be told apart."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return Weights(model_tensors(model), {}, optimizer)


def loaded_value(folder: Path) -> tuple[int, float]:
    weights = make_weights(-1.0)
    found = Checkpoints(folder, 1, Processes()).load(weights)
    assert found is not None
    return found[0], weights.model["0.bias"][0].item()


def test_a_saved_checkpoint_loads_exactly(tmp_path: Path) -> None:
    saved, other = make_weights(1.0), make_weights(2.0)
    Checkpoints(tmp_path, 1, Processes()).save(7, saved, {"anything": [1, {"a": None}]})
    assert Checkpoints(tmp_path, 1, Processes()).load(other) == (7, {"anything": [1, {"a": None}]})
    assert all(torch.equal(tensor, other.model[name]) for name, tensor in saved.model.items())
    for name, entry in saved.optimizer_state().items():
        assert all(torch.equal(value, other.optimizer_state()[name][key]) for key, value in entry.items())


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2, Processes())
    for step in (1, 2, 3):
        checkpoints.save(step, make_weights(step), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000002", "step-00000003"]
    assert loaded_value(tmp_path) == (3, 3.0)


class KilledError(BaseException):
    """Simulates a kill: nothing catches it, nothing cleans up."""


def test_a_kill_at_any_point_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each disk call of a save in turn is the last one before the kill. Afterwards a new process can save."""
    calls = 0
    limit = 1_000_000

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > limit:
                raise KilledError
            return function(*args, **kwargs)

        return wrapper

    for owner, name in (
        (os, "fsync"),
        (Path, "rename"),
        (Path, "replace"),
        (Path, "mkdir"),
        (Path, "unlink"),
        (shutil, "rmtree"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    outcomes = []
    instants = 1
    while instants:
        folder = tmp_path / f"killed-{instants}"
        limit = 1_000_000
        Checkpoints(folder, 1, Processes()).save(1, make_weights(1.0), {})
        checkpoints = Checkpoints(folder, 1, Processes())
        calls, limit = 0, instants - 1
        try:
            checkpoints.save(2, make_weights(2.0), {})
            instants = 0
        except KilledError:
            instants += 1
        limit = 1_000_000
        outcomes.append(loaded_value(folder))
        Checkpoints(folder, 1, Processes()).save(3, make_weights(3.0), {})
        assert loaded_value(folder) == (3, 3.0)
        assert sorted(path.name for path in folder.iterdir()) == ["latest", "step-00000003"]
    assert len(outcomes) > 8
    assert sorted(outcomes) == outcomes  # first always the old one, then always the new one
    assert set(outcomes) == {(1, 1.0), (2, 2.0)}


def test_a_full_disk_is_reported_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, 1, Processes())
    checkpoints.save(1, make_weights(1.0), {})

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("stepsnet.train.checkpoint.write_file", full)
    with pytest.raises(
        RunFailed,
        match=r"disk is full: .*step-00000002 needs [\d,]+ bytes, [\d,]+ are free\. .*step-00000001, is intact",
    ):
        checkpoints.save(2, make_weights(2.0), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"]
    assert loaded_value(tmp_path) == (1, 1.0)


def test_other_disk_errors_are_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), explain_full_disk(tmp_path, 1, ""):
        raise PermissionError(errno.EACCES, "no")


class Payload:
    """A malicious pickle: it creates a file when it is read."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.proof,)


@pytest.mark.parametrize("file", ["weights.safetensors", "ema.safetensors", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_payload_in_any_file_is_refused_on_resume(file: str, zipped: bool, tmp_path: Path) -> None:
    train(small_config(tmp_path / "run", "optim.ema=0.9"), [At(1, terminate)], task=NoisyTask())
    newest = latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert (newest / file).exists()
    payload = {"0.weight": {"step": Payload(tmp_path / "proof")}}
    if zipped:
        torch.save(payload, newest / file)
    else:
        (newest / file).write_bytes(pickle.dumps(payload))
    with pytest.raises(UsageError, match=f"{file} is "):
        resume(tmp_path / "run", task=NoisyTask())
    assert not (tmp_path / "proof").exists()


def test_a_payload_in_a_shard_is_refused(tmp_path: Path) -> None:
    def work() -> None:
        train(small_config(tmp_path / "run", "parallel=fsdp"), [At(1, terminate)], task=NoisyTask())

    in_processes(1, work)
    newest = latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    (shard,) = (newest / "shards").iterdir()
    shard.write_bytes(pickle.dumps(Payload(tmp_path / "proof")))
    with pytest.raises(UsageError, match="is refused"):
        resume(tmp_path / "run", task=NoisyTask())
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    ("content", "sentence"), [("step-00000099", "no such checkpoint"), ("../../etc", "no such checkpoint")]
)
def test_a_pointer_to_a_missing_checkpoint_is_an_error(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "latest").write_text(content)
    with pytest.raises(UsageError, match=sentence):
        latest(tmp_path)


def test_a_checkpoint_of_another_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PoweredOffError):
        train(small_config(tmp_path / "run", "checkpoint.every=1"), [At(2, power_off)], task=NoisyTask())
    config = (tmp_path / "run" / "config.json").read_text().replace("test_deit", "test_resnet")
    (tmp_path / "run" / "config.json").write_text(config)
    with pytest.raises(UsageError, match=r"does not fit the model: .* is only in"):
        resume(tmp_path / "run", task=NoisyTask())


def test_a_loaded_moment_has_the_strides_of_its_parameter() -> None:
    moment, parameter = (
        torch.arange(54.0).view(2, 3, 3, 3),
        torch.empty(2, 3, 3, 3).to(memory_format=torch.channels_last),
    )
    found = like(moment, parameter)
    assert found.stride() == parameter.stride()
    assert torch.equal(found, moment)


def test_a_truncated_optimizer_file_is_called_damaged(tmp_path: Path) -> None:
    torch.save({"weight": {"exp_avg": torch.zeros(100)}}, tmp_path / "optimizer.pt")
    content = (tmp_path / "optimizer.pt").read_bytes()
    (tmp_path / "optimizer.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match="it is damaged"):
        read_optimizer(tmp_path / "optimizer.pt")
