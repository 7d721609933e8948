"""Looks at a trained cell, without training anything: Tables 6 and 7. What they find is kept in the cell's folder, as <name>.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from stepsnet.analysis import drop_blocks, mask_paths
from stepsnet.files import read_json, write_json
from stepsnet.research.studies.results import has_null
from stepsnet.tasks.base import Batch
from stepsnet.train.config import TrainConfig
from stepsnet.train.distributed import Processes, choose_device
from stepsnet.train.evaluate import trained_model
from stepsnet.train.loader import ValidationBatches

Measure: TypeAlias = Callable[[nn.Module, Batch], tuple[float, float]]

PROBES: dict[str, Callable[[nn.Module, Iterable[Batch], Measure], dict[str, Any]]] = {
    "paths": lambda model, batches, measure: mask_paths(model, batches, measure).to_json(),
    "drops": lambda model, batches, measure: drop_blocks(model, batches, measure).to_json(),
}


class _OnDevice:
    """Batches that count, read anew for each pass: a validation set need not fit into memory."""

    def __init__(self, batches: ValidationBatches, device: torch.device) -> None:
        self.batches, self.device = batches, device

    def __iter__(self) -> Iterator[Batch]:
        for batch, counts in self.batches:
            if counts:
                yield {key: tensor.to(self.device) for key, tensor in batch.items()}


def probe(name: str, folder: Path, config: TrainConfig) -> None:
    """Look at the finished run in `folder` by its loss and, if it has one, its accuracy, unless that was done and found numbers only."""
    path = folder / f"{name}.json"
    known = read_json(path)
    if known and not has_null(known):
        return
    task, model = trained_model(folder, config)
    processes = Processes(device=choose_device(config.device))
    model.to(processes.device)
    counted = ValidationBatches(task, config.eval.batch_size or config.batch_size, config.workers, processes)
    batches = _OnDevice(counted, processes.device)

    def measure(metric: str) -> Measure:
        def sums(model: nn.Module, batch: Batch) -> tuple[float, float]:
            found = task.evaluate(model, batch)
            return float(found[f"{metric}_sum"]), float(found["count"])

        return sums

    with torch.no_grad():
        first = task.evaluate(model.eval(), next(iter(batches)))
    metrics = [metric for metric in ("loss", "top1") if f"{metric}_sum" in first]
    write_json(path, {metric: PROBES[name](model, batches, measure(metric)) for metric in metrics})
