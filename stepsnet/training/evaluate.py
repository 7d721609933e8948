"""Validation: every sample once, over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from stepsnet.tasks.base import Batch, Task
from stepsnet.training.distributed import Processes


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    batches: Iterable[tuple[Batch, bool]],
    processes: Processes,
    precision: Callable[[], AbstractContextManager[None]],
    stop_requested: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """The task's metrics over `batches`, each with whether it counts; None if any process is asked to stop before the end."""
    model.eval()
    totals: dict[str, Tensor] = {}
    for batch, counts in batches:
        if processes.sum([stop_requested()])[0]:
            return None
        on_device = {key: tensor.to(processes.device, non_blocking=True) for key, tensor in batch.items()}
        with precision():
            sums = task.evaluate(model, on_device)
        for name, value in sums.items():
            totals[name] = totals.get(name, torch.zeros_like(value)) + value * counts
    sums_over_all = processes.sum([float(total) for total in totals.values()])
    return task.summary(dict(zip(totals, sums_over_all, strict=True)))
