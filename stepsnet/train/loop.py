"""THE training loop: one for every task, one process or many."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stepsnet.data.rng import mix
from stepsnet.errors import RunFailed
from stepsnet.tasks.base import Batch, Task
from stepsnet.train.callbacks import Watcher
from stepsnet.train.config import TrainConfig
from stepsnet.train.distributed import Processes, gradient_norm, sync_gradients
from stepsnet.train.ema import WeightAverage
from stepsnet.train.optim import set_lr
from stepsnet.train.schedule import lr_share


@dataclass
class TrainState:
    """Everything a run is made of while it runs; what its callbacks see."""

    config: TrainConfig
    task: Task
    model: nn.Module
    forward: nn.Module
    """What runs the model forward in training: the model itself, or its DDP wrapper."""
    optimizer: torch.optim.Optimizer
    ema: WeightAverage | None
    processes: Processes
    out: Path
    total_steps: int
    steps_per_epoch: int
    step: int = 0
    """Updates done, those left out because of a non-finite loss included."""
    left_out: int = 0
    evaluated: int = -1
    """The step last evaluated."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the last evaluation found."""

    def autocast(self) -> AbstractContextManager[None]:
        """The precision of forward passes."""
        return autocast(self.config, self.processes)

    def is_evaluated_after(self, step: int) -> bool:
        """Whether the plan is to evaluate after `step` updates."""
        every = self.steps_per_epoch if self.config.eval.every is None else self.config.eval.every
        return step == self.total_steps or (step > 0 and every > 0 and step % every == 0)

    def is_saved_after(self, step: int) -> bool:
        """Whether the plan is to save after `step` updates."""
        every = self.config.checkpoint.every
        return step == self.total_steps or (step > 0 and every > 0 and step % every == 0)


def autocast(config: TrainConfig, processes: Processes) -> AbstractContextManager[None]:
    """The precision of forward passes, as a context."""
    return torch.autocast(processes.device.type, torch.bfloat16, enabled=config.precision == "bf16")


class Batches(Protocol):
    """An endless supply of this process's share of each batch."""

    def __next__(self) -> Batch: ...


class Surroundings(Protocol):
    """What the loop asks of its surroundings."""

    def evaluate(self) -> dict[str, float] | None:
        """Evaluate the present weights, over all processes; None if somebody asked to stop meanwhile."""

    def save(self) -> None:
        """Write a checkpoint of the present state."""

    def stop_requested(self) -> bool:
        """Whether this process was asked to stop."""


def fit(state: TrainState, batches: Batches, around: Surroundings, callbacks: Sequence[Watcher]) -> bool:
    """Train until the last step (True) or until somebody asks to stop (False). Either way the state has been saved."""
    stop = False
    while not stop and (state.step < state.total_steps or state.evaluated < state.step):
        if state.is_evaluated_after(state.step) and state.evaluated < state.step:  # also where an interrupted run had not come to it
            found = around.evaluate()
            if found is None:
                around.save()
                return False
            state.metrics, state.evaluated = found, state.step
            for callback in callbacks:
                callback.on_evaluate(state, state.step, state.metrics)
            if state.is_saved_after(state.step):
                around.save()
            if state.step == state.total_steps:
                break
        metrics, stop = one_step(state, batches, around)
        for callback in callbacks:
            callback.on_step(state, state.step, metrics)
        if stop or (state.is_saved_after(state.step) and not state.is_evaluated_after(state.step)):
            around.save()
    return state.step == state.total_steps and not stop


def one_step(state: TrainState, batches: Batches, around: Surroundings) -> tuple[dict[str, Any], bool]:
    """One batch, one update. Returns what happened, and whether any process was asked to stop."""
    config, started = state.config, time.perf_counter()
    batch = next(batches)
    waited = time.perf_counter() - started
    lr = config.peak_lr * lr_share(config.schedule, state.step, state.total_steps, state.steps_per_epoch)
    set_lr(state.optimizer, lr)
    statistics = _running_statistics(state)
    losses, ids = _gradients(state, batch)
    units = state.task.units(batch)
    finite = [loss == loss and abs(loss) != float("inf") for loss, _ in losses]
    loss_sum, rows, bad_parts, all_units, stops = state.processes.sum(
        [sum(loss * n for loss, n in losses), sum(n for _, n in losses), finite.count(False), units, around.stop_requested()]
    )
    norm = gradient_norm([p for group in state.optimizer.param_groups for p in group["params"]], config.optim.clip)
    metrics: dict[str, Any] = {"loss": loss_sum / max(rows, 1), "lr": lr, "grad_norm": norm, "epoch": state.step / state.steps_per_epoch}
    if bad_parts or norm != norm or norm == float("inf"):
        culprits = [part for part, fine in zip(ids, finite, strict=True) if not fine] if bad_parts else ids
        metrics |= _leave_out(state, "loss" if bad_parts else "gradient", culprits, statistics)
    else:
        state.optimizer.step()
        if state.ema:
            state.ema.update()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    missing = config.batch_size - round(rows)
    if missing:
        metrics["unreadable"] = missing
    seconds = time.perf_counter() - started
    return metrics | {"seconds": seconds, "data_seconds": waited, state.task.unit: round(all_units)}, bool(stops)


def _gradients(state: TrainState, batch: Batch) -> tuple[list[tuple[float, int]], list[list[int]]]:
    """Forward and backward over this process's share of the batch, in `accumulate` parts: (mean loss, rows) and sample ids of each.

    Every sample weighs 1/batch_size, wherever it is computed, so the sum over parts and the mean over processes are the gradient
    of the mean over the batch. The generator of dropout and stochastic depth is seeded for each step, so that nothing depends on
    the steps before.
    """
    config, processes = state.config, state.processes
    seed_generators(mix(config.seed, state.step, processes.rank), processes.device)
    state.model.train()
    on_device = {key: tensor.to(processes.device, non_blocking=True) for key, tensor in batch.items()}
    parts = list(_cut(state.task.prepare(on_device, state.step), config.accumulate))
    share = config.batch_size / processes.world
    losses: list[Tensor] = []
    for number, part in enumerate(parts, start=1):
        with sync_gradients(state.forward, now=number == len(parts)):
            with state.autocast():
                loss = state.task.loss(state.forward, part)
            (loss * (len(part["ids"]) / share)).backward()
        losses.append(loss.detach())
    values = torch.stack(losses).tolist()  # the one moment of the step at which the processor waits for the graphics card
    rows = [len(part["ids"]) for part in parts]
    return list(zip(values, rows, strict=True)), [part["ids"].tolist() for part in parts]


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed what dropout draws from. (`torch.manual_seed` prepares devices that are not there as well, and takes 100 times as long.)"""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _cut(batch: Batch, parts: int) -> Iterator[Batch]:
    pieces = {key: tensor.tensor_split(parts) for key, tensor in batch.items()}
    for number in range(parts):
        yield {key: piece[number] for key, piece in pieces.items()}


def _running_statistics(state: TrainState) -> Mapping[str, Tensor]:
    """A copy of the buffers that forward passes change, kept only where a bad batch is to leave no trace."""
    if state.config.nonfinite == "stop":
        return {}
    parameters = dict(state.model.named_parameters())
    return {name: tensor.clone() for name, tensor in state.model.state_dict().items() if name not in parameters}


@torch.no_grad()
def _leave_out(state: TrainState, what: str, ids: list[list[int]], statistics: Mapping[str, Tensor]) -> dict[str, Any]:
    """No update for this batch: stop the run, or undo what the forward pass left behind and count."""
    culprits = sorted(number for part in state.processes.gather(ids) for piece in part for number in piece)
    named = ", ".join(map(str, culprits[:32])) + (f" and {len(culprits) - 32} more" if len(culprits) > 32 else "")
    sentence = f"The {what} of step {state.step + 1} is not finite; the samples are {named}."
    if state.config.nonfinite == "stop":
        raise RunFailed(f"{sentence} The weights were not updated and nothing was saved (nonfinite=skip leaves such steps out).")
    state.left_out += 1
    if state.left_out > state.config.nonfinite_limit:
        raise RunFailed(f"{sentence} This is more than the nonfinite_limit={state.config.nonfinite_limit} steps that may be left out.")
    buffers = state.model.state_dict()
    for name, tensor in statistics.items():
        buffers[name].copy_(tensor)
    return {"left_out": state.left_out, "ids": culprits}
