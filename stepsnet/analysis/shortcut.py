"""The shortcut ratio γ (Sec. 3.1): the share of z_0 in the state after the residual branches have been added.

γ_l = σ(z_0) / σ(z_l), with σ over the channels of the full-width state at each position; the ratio is averaged over
positions and batch. At γ = 1 the state has the size of z_0; near 0 the branches dominate it. γ depends on
initialisation and training step, so state both with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepsnet.analysis.states import Result, Seen, macro_nets, undisturbed, watch_blocks, wide
from stepsnet.errors import UsageError
from stepsnet.files import finite
from stepsnet.runs.folder import GAMMA, StepLines


@dataclass(frozen=True)
class ShortcutRatio(Result):
    """One number for each block in the order of execution, each the mean over positions and batch.

    In Eq. 2 the normalised state is ẑ_l = (σ_0/σ_l) ẑ_0 + (σ_r/σ_l) r̂_l with r_l = z_l - z_0, the sum of all branches
    so far (Eq. 1): its weights are `gamma` and `residual_weight`. `branch_sigma` and `branch_weight` are σ(z_l -
    z_{l-1}) and its ratio to σ(z_l): what block l alone adds. In a StepsNet z_{l-1} is the input of the block, after
    the join.
    """

    gamma: list[float]
    """σ(z_0) / σ(z_l)"""
    sigma: list[float]
    """σ(z_l)"""
    sigma_0: list[float]
    """σ(z_0) of the block's stage"""
    residual_sigma: list[float]
    """σ(z_l - z_0)"""
    residual_weight: list[float]
    """σ(z_l - z_0) / σ(z_l)"""
    branch_sigma: list[float]
    """σ(z_l - z_{l-1})"""
    branch_weight: list[float]
    """σ(z_l - z_{l-1}) / σ(z_l)"""
    cosine: list[float]
    """of the angle between z_l and z_0"""
    block: list[int]
    """the number of the block, from 1"""
    stage: list[int]
    """its stage, from 0"""

    @property
    def mean(self) -> float:
        """γ averaged over the depth."""
        return sum(self.gamma) / len(self.gamma)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "mean": finite(self.mean)}


def shortcut_ratio(
    model: nn.Module, *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None,
    start: int = 0,
) -> ShortcutRatio:
    """γ of `model` on one batch, `model(*inputs)`.

    Models of this package need nothing more, and in most others `find_blocks` finds the residual blocks. Where it does
    not, give them as `blocks` (`model.layers`) and, as `channel_dim`, the dimension of the channels in their outputs if
    it is not 1 for tensors of four dimensions and else the last. With `start=l` the state after block l is z_0 of its
    stage, and the result has the blocks after it. The model runs in evaluation mode, without gradients, and is left
    unchanged.
    """
    return measure(model, lambda: model(*inputs), *inputs, blocks=blocks, channel_dim=channel_dim, start=start)


def measure(
    model: nn.Module, forward: Callable[[], Any], *inputs: Any, blocks: Iterable[nn.Module] | None = None,
    channel_dim: int | None = None, start: int = 0,
) -> ShortcutRatio:
    """γ in the pass through `model` that `forward()` makes; `inputs` help to find the blocks, see `find_blocks`."""
    found: list[Tensor] = []
    places: list[tuple[int, int]] = []
    later: dict[int, Tensor] = {}  # the z_0 of a stage that is not its first state

    def visit(seen: Seen) -> None:
        if seen.number == start:
            later[seen.stage] = seen.after.clone()
        if seen.number > start:
            found.append(_weights(later.get(seen.stage, seen.z_0), seen))
            places.append((seen.number, seen.stage))

    if start < 0:
        raise UsageError(f"start is {start}, but must be the number of a block, or 0 for the input of the first")
    with undisturbed(model), watch_blocks(model, visit, *inputs, blocks=blocks, channel_dim=channel_dim):
        forward()
    if not found:
        raise UsageError(f"start={start} leaves no block to measure; give the number of an earlier block")
    numbers, stages = [number for number, _ in places], [stage for _, stage in places]
    gamma, sigma, sigma_0, residual, of_residual, branch, of_branch, cosine = torch.stack(found, dim=1).tolist()
    return ShortcutRatio(gamma, sigma, sigma_0, residual, of_residual, branch, of_branch, cosine, numbers, stages)


def _weights(z_0: Tensor, seen: Seen) -> Tensor:
    """The first eight fields of `ShortcutRatio` for one block."""
    dim = seen.dim
    z_0, before, z = wide(z_0), wide(seen.before), wide(seen.after)
    sigma_0, sigma, residual, branch = (deviation(tensor, dim) for tensor in (z_0, z, z - z_0, z - before))
    alive = sigma > 0  # a position with equal channels, as after a dead ReLU, has no ratio
    gamma, of_residual, of_branch = ((tensor[alive] / sigma[alive]).mean() for tensor in (sigma_0, residual, branch))
    cosine = torch.nn.functional.cosine_similarity(z_0, z, dim=dim)[alive].mean()
    sizes = [tensor.mean() for tensor in (sigma, sigma_0, residual, branch)]
    return torch.stack((gamma, *sizes[:3], of_residual, sizes[3], of_branch, cosine))


def deviation(z: Tensor, dim: int) -> Tensor:
    """σ over channels at each position."""
    return z.std(dim, correction=0)


class Samples(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, key: tuple[int, int], /) -> Any: ...


class ProbedTask(Protocol):
    """What the recorder needs of a task: validation samples and a pass of the model on a batch."""

    @property
    def valid(self) -> Samples: ...

    def collate(self, samples: list[Any]) -> dict[str, Tensor]: ...

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor], /) -> Any: ...


class RecordedRun(Protocol):
    """What the recorder needs of a run."""

    @property
    def task(self) -> ProbedTask: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def out(self) -> Path: ...

    @property
    def step(self) -> int: ...

    @property
    def total_steps(self) -> int: ...

    def autocast(self) -> AbstractContextManager[None]: ...


@dataclass
class GammaRecorder:
    """A callback of the training loop that appends `{"step": …, "gamma": […]}` to gamma.jsonl in the run folder.

    It records at the start, every `every` steps and at the end, always on the same `samples` validation samples. If the
    passes take more than `share` of the time, steps are skipped, but never the first, the last and those in `always`.
    Sharded models (FSDP) are not recorded: a pass through one needs all ranks.
    """

    every: int = 50
    samples: int = 8
    share: float = 0.02
    always: Collection[int] = ()
    _spent = 0.0

    def on_start(self, state: RecordedRun) -> None:
        self._began = time.perf_counter()
        sharded = any(isinstance(parameter, DTensor) for parameter in state.model.parameters())
        self._recording = bool(macro_nets(state.model)) and not sharded
        if not self._recording:
            return
        self._lines = StepLines(state.out / GAMMA, keep_until=state.step)
        stride = max(1, len(state.task.valid) // self.samples)
        chosen = range(0, stride * min(self.samples, len(state.task.valid)), stride)
        device = next(state.model.parameters()).device
        probe = state.task.collate([state.task.valid[0, index] for index in chosen])
        self._probe = {key: tensor.to(device) for key, tensor in probe.items()}
        if state.step == 0:
            self._record(state, 0)

    def on_step(self, state: RecordedRun, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        within_share = self._spent <= self.share * (time.perf_counter() - self._began)
        if step == state.total_steps or step in self.always or (step % self.every == 0 and within_share):
            self._record(state, step)

    def on_evaluate(self, state: RecordedRun, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing to do."""

    def on_checkpoint(self, state: RecordedRun, step: int) -> None:
        """Nothing to do: every line is written at once."""

    def on_end(self, state: RecordedRun) -> None:
        """Nothing to do: `report.run.run_report` draws what was recorded."""

    def close(self) -> None:
        if getattr(self, "_recording", False):
            self._lines.close()

    def _record(self, state: RecordedRun, step: int) -> None:
        if not self._recording or step <= self._lines.last_step:
            return
        began = time.perf_counter()
        with state.autocast():
            found = measure(state.model, lambda: state.task.evaluate(state.model, self._probe))
        self._lines.append({"step": step, "gamma": [round(value, 6) for value in found.gamma]})
        if step:  # the record before the first step has no training time to compare with
            self._spent += time.perf_counter() - began
