"""γ recorded during a run, with a stand-in for the state of the training loop."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.analysis import GammaRecorder
from stepsnet.macro import Stack, StepsNet


class Samples:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        return torch.randn(3, 4, generator=torch.Generator().manual_seed(key[1]))


@dataclass
class Task:
    valid: Samples = field(default_factory=Samples)
    seen: list[Tensor] = field(default_factory=list)

    def collate(self, samples: list[Any]) -> dict[str, Tensor]:
        return {"x": torch.stack(samples)}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        self.seen.append(batch["x"])
        return {"sum": model(batch["x"]).sum()}


@dataclass
class State:
    out: Path
    step: int = 0
    total_steps: int = 10
    task: Task = field(default_factory=Task)
    model: nn.Module = field(default_factory=lambda: StepsNet([Stack([nn.Linear(4, 4)])], [4]))

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()


def train(recorder: GammaRecorder, state: State, until: int) -> None:
    recorder.on_start(state)
    for _ in range(state.step, until):
        state.step += 1
        recorder.on_step(state, state.step, {})
    if state.step == state.total_steps:
        recorder.on_end(state)
    recorder.close()


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "gamma.jsonl").read_text().splitlines()]


def test_the_first_every_nth_and_the_last_step_are_recorded(tmp_path: Path) -> None:
    train(GammaRecorder(every=4, share=1.0), State(tmp_path), until=10)
    assert steps(tmp_path) == [0, 4, 8, 10]
    line = json.loads((tmp_path / "gamma.jsonl").read_text().splitlines()[0])
    assert len(line["gamma"]) == 1


def test_a_resume_truncates_the_file_atomically(tmp_path: Path) -> None:
    train(GammaRecorder(every=2, share=1.0), State(tmp_path), until=8)
    whole = (tmp_path / "gamma.jsonl").read_text()
    with (tmp_path / "gamma.jsonl").open() as reader:  # sees the old file or the new one, never a part
        recorder = GammaRecorder(every=2, share=1.0)
        recorder.on_start(State(tmp_path, step=4))
        assert reader.read() in (whole, "".join(whole.splitlines(keepends=True)[:3]))
        recorder.close()
    assert steps(tmp_path) == [0, 2, 4]
    assert not list(tmp_path.glob(".*"))


def test_the_recorder_writes_numbers_only(tmp_path: Path) -> None:
    train(GammaRecorder(every=4, share=1.0), State(tmp_path), until=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gamma.jsonl"]


def test_the_probe_is_always_the_same(tmp_path: Path) -> None:
    state = State(tmp_path)
    train(GammaRecorder(every=5, samples=4, share=1.0), state, until=10)
    assert all(torch.equal(seen, state.task.seen[0]) for seen in state.task.seen)
    assert len(state.task.seen[0]) == 4


def test_each_step_is_written_once_after_a_resume(tmp_path: Path) -> None:
    train(GammaRecorder(every=2, share=1.0), State(tmp_path), until=7)
    with (tmp_path / "gamma.jsonl").open("a") as file:
        file.write('{"step": 8, "ga')  # killed while writing
    train(GammaRecorder(every=2, share=1.0), State(tmp_path, step=4), until=10)
    assert steps(tmp_path) == [0, 2, 4, 6, 8, 10]


def test_records_are_skipped_when_they_take_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))  # every question about the time takes a second: looking takes half of the run
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    train(GammaRecorder(every=1, share=0.1), State(tmp_path, total_steps=30), until=30)
    assert steps(tmp_path)[0] == 0
    assert steps(tmp_path)[-1] == 30
    assert len(steps(tmp_path)) < 8


def test_a_network_that_is_not_finite_gives_json(tmp_path: Path) -> None:
    state = State(tmp_path)
    nn.init.constant_(state.model.steps[0].blocks[0].weight, float("nan"))  # type: ignore[union-attr, index]
    train(GammaRecorder(), state, until=1)
    assert json.loads((tmp_path / "gamma.jsonl").read_text().splitlines()[0])["gamma"] == [None]


def test_a_model_without_steps_is_not_recorded(tmp_path: Path) -> None:
    train(GammaRecorder(), State(tmp_path, model=nn.Linear(4, 4)), until=10)
    assert not (tmp_path / "gamma.jsonl").exists()
