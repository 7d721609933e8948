"""Validation: every sample once, over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.tasks.base import Batch, Task, WholeSetTask
from stepsnet.train.distributed import Processes


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    batches: Iterable[tuple[Batch, bool]],
    processes: Processes,
    precision: Callable[[], AbstractContextManager[None]],
    stop_requested: Callable[[], bool] = lambda: False,
    keep: Callable[[list[Any]], None] = lambda _: None,
) -> dict[str, float] | None:
    """The task's metrics over `batches`, each with whether it counts; None if any process is asked to stop before the end.

    `keep` gets the predictions of a task that judges them all at once, in the first process.
    """
    model.eval()
    whole_set = task if isinstance(task, WholeSetTask) else None
    totals: dict[str, Tensor] = {}
    predictions: list[Any] = []
    for batch, counts in batches:
        if processes.sum([stop_requested()])[0]:
            return None
        on_device = {key: tensor.to(processes.device, non_blocking=True) for key, tensor in batch.items()}
        with precision():
            if whole_set is not None:
                found = whole_set.predictions(model, on_device)
                predictions += found if counts else []
                continue
            sums = task.evaluate(model, on_device)
        for name, value in sums.items():
            totals[name] = totals.get(name, torch.zeros_like(value)) + value * counts
    if whole_set is not None:
        everything = [found for part in processes.gather(predictions) for found in part]
        if processes.first:
            keep(everything)
        return processes.decide(lambda: whole_set.score(everything))
    sums_over_all = processes.sum([float(total) for total in totals.values()])
    return task.summary(dict(zip(totals, sums_over_all, strict=True)))
