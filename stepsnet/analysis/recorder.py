"""γ during training: a callback of the training loop, which knows nothing of it. What it asks of the run it is told here."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepsnet.analysis.shortcut import measure
from stepsnet.analysis.states import macro_nets
from stepsnet.runs.folder import GAMMA, StepLines


class Samples(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, key: tuple[int, int], /) -> Any: ...


class TaskFace(Protocol):
    """What the recorder needs of a task: validation samples and a way to run the model on some."""

    @property
    def valid(self) -> Samples: ...

    def collate(self, samples: list[Any]) -> dict[str, Tensor]: ...

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor], /) -> Any: ...


class RunFace(Protocol):
    """What the recorder needs of a run."""

    @property
    def task(self) -> TaskFace: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def out(self) -> Path: ...

    @property
    def step(self) -> int: ...

    @property
    def total_steps(self) -> int: ...

    def autocast(self) -> AbstractContextManager[None]: ...


class GammaRecorder:
    """Writes `{"step": …, "gamma": […]}` to gamma.jsonl in the run folder: at the start, every `every` steps, and at the last one.

    The same `samples` validation samples serve as probe each time. Should the passes take more than `share` of the time, steps are left
    out, but never the first, those in `always` and the last. Sharded models (FSDP) are not watched: a pass through one needs all ranks.
    """

    def __init__(self, every: int = 50, samples: int = 8, share: float = 0.02, always: Collection[int] = ()) -> None:
        self.every, self.samples, self.share, self.always = every, samples, share, always
        self._spent = 0.0

    def on_start(self, state: RunFace) -> None:
        self._began = time.perf_counter()
        self._path = state.out / GAMMA
        sharded = any(isinstance(parameter, DTensor) for parameter in state.model.parameters())
        self._watching = bool(macro_nets(state.model)) and not sharded
        if not self._watching:
            return
        self._lines = StepLines(self._path, keep_until=state.step)
        stride = max(1, len(state.task.valid) // self.samples)
        chosen = range(0, stride * min(self.samples, len(state.task.valid)), stride)
        device = next(state.model.parameters()).device
        probe = state.task.collate([state.task.valid[0, index] for index in chosen])
        self._probe = {key: tensor.to(device) for key, tensor in probe.items()}
        if state.step == 0:
            self._record(state, 0)

    def on_step(self, state: RunFace, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        within_share = self._spent <= self.share * (time.perf_counter() - self._began)
        if step == state.total_steps or step in self.always or (step % self.every == 0 and within_share):
            self._record(state, step)

    def on_evaluate(self, state: RunFace, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing to do."""

    def on_checkpoint(self, state: RunFace, step: int) -> None:
        """Nothing to do: every line is on its way to the disk already."""

    def on_end(self, state: RunFace) -> None:
        """Nothing to do: `report.run.run_report` draws what was recorded."""

    def close(self) -> None:
        if getattr(self, "_watching", False):
            self._lines.close()

    def _record(self, state: RunFace, step: int) -> None:
        if not self._watching or step <= self._lines.last_step:
            return
        began = time.perf_counter()
        with state.autocast():
            found = measure(state.model, lambda: state.task.evaluate(state.model, self._probe))
        self._lines.append({"step": step, "gamma": [round(value, 6) for value in found.gamma]})
        if step:  # the look before the first step has no training time to be compared with
            self._spent += time.perf_counter() - began
