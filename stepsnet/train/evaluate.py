"""Validation: in training, and of a trained run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import Model, load_model
from stepsnet.runs.folder import CHECKPOINTS, WEIGHTS, WEIGHTS_EMA
from stepsnet.tasks.base import Batch, DenseTask, Task, TaskWithFiles, WholeSetTask
from stepsnet.train.build import load_dense_weights, model_of, task_of
from stepsnet.train.checkpoint import latest, read_weights
from stepsnet.train.config import EVALUATION_KEYS, TrainConfig, customise_resumed, read_config
from stepsnet.train.distributed import Processes, choose_device, model_tensors
from stepsnet.train.loader import ValidationBatches


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, batches: Iterable[tuple[Batch, bool]], processes: Processes, precision: str, *,
    stop: Callable[[], bool] = lambda: False, keep: Callable[[list[Any]], None] = lambda _: None,
) -> dict[str, float] | None:  # fmt: skip
    """The metrics of the task over `batches`, each with whether it counts; None if `stop` becomes true on any process.

    `keep` gets the predictions of a task that scores all of them at once, in the first process.
    """
    model.eval()
    whole_set = task if isinstance(task, WholeSetTask) else None
    totals: dict[str, Tensor] = {}
    predictions: list[Any] = []
    for batch, counts in batches:
        if processes.sum([stop()])[0]:
            return None
        with processes.autocast(precision):
            if whole_set is not None:
                found = whole_set.predictions(model, processes.move(batch))
                predictions += found if counts else []
                continue
            sums = task.evaluate(model, processes.move(batch))
        for name, value in sums.items():
            totals[name] = totals.get(name, torch.zeros_like(value)) + value * counts
    if whole_set is not None:
        everything = [found for part in processes.gather(predictions) for found in part]
        if processes.first:
            keep(everything)
        return processes.decide(lambda: whole_set.score(everything))
    sums_over_all = processes.sum([float(total) for total in totals.values()])
    return task.summary(dict(zip(totals, sums_over_all, strict=True)))


def evaluate_run(
    folder: Path,
    words: Sequence[str] = (),
    *,
    ema: bool = False,
    through: Callable[[ValidationBatches], Iterable[tuple[Batch, bool]]] = iter,
    keep: Callable[[list[Any]], None] = lambda _: None,
) -> dict[str, float]:
    """Validation metrics of the run in `folder`: of its final weights, or its latest checkpoint; `ema`: averaged ones.

    `through` may wrap the batches, for example with a progress bar. `keep`: see `evaluate`.
    """
    config = dataclasses.replace(read_config(folder), parallel="none")
    config = customise_resumed(config, words, EVALUATION_KEYS)
    if ema and not config.optim.ema:
        raise UsageError(f"{folder} has no averaged weights: it was trained with optim.ema=0.")
    task, model = trained_model(folder, config, ema=ema)
    processes = Processes(device=choose_device(config.device))
    batches = ValidationBatches(task, config.eval_batch_size, config.workers, processes)
    found = evaluate(model.to(processes.device), task, through(batches), processes, config.precision, keep=keep)
    assert found is not None  # nothing can request a stop
    return found


def trained_model(folder: Path, config: TrainConfig, *, ema: bool = False) -> tuple[Task, Model]:
    """The task of the run in `folder` and its model with the final weights, or those of its latest checkpoint."""
    task = task_of(config)
    if isinstance(task, TaskWithFiles):
        task.check_run(folder)
    final = folder / (WEIGHTS_EMA if ema else WEIGHTS)
    if final.exists() and isinstance(task, DenseTask):
        model = model_of(config, task, pretrained=False)
        load_dense_weights(model, task, final)
    elif final.exists():
        model = load_model(final)
    elif (checkpoint := latest(folder / CHECKPOINTS)) is not None:
        model = model_of(config, task, pretrained=False)
        read_weights(checkpoint, model_tensors(model), ema=ema)
    else:
        raise UsageError(f"{folder} has neither final weights nor a checkpoint yet.")
    return task, model
