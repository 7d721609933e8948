"""One cell in a process: `python -m stepsnet.research.studies.cell`, its job as one line of JSON on standard input.

It saves and exits on SIGTERM, and when its standard input is closed because the study has ended. The doctor examines
the model at the start and once more, early in training. After training the probes of the study are measured (Tables 6
and 7: no further training), and each is written to <name>.json in the run folder.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from torch import nn

from stepsnet.analysis import GammaRecorder, drop_blocks, mask_paths
from stepsnet.analysis.doctor import Diagnosis, diagnose
from stepsnet.errors import RunFailed, UsageError
from stepsnet.files import read_json, write_json
from stepsnet.research.studies.results import DOCTOR, has_null
from stepsnet.runs.folder import StepLines, is_being_trained, is_finished, is_run
from stepsnet.tasks.base import Batch, spread_samples
from stepsnet.train.callbacks import AnyCallback, Callback
from stepsnet.train.config import TrainConfig
from stepsnet.train.distributed import Processes, choose_device
from stepsnet.train.evaluate import trained_model
from stepsnet.train.loader import ValidationBatches
from stepsnet.train.trainer import Trainer, resume, train
from stepsnet.train.typed import from_dict

Measure: TypeAlias = Callable[[nn.Module, Batch], tuple[float, float]]

SAMPLES = 8
WAIT_SECONDS = 1.0
PROBES: dict[str, Callable[[nn.Module, Iterable[Batch], Measure], dict[str, Any]]] = {
    "paths": lambda model, batches, measure: mask_paths(model, batches, measure).to_json(),
    "drops": lambda model, batches, measure: drop_blocks(model, batches, measure).to_json(),
}


class Examiner(Callback):
    """Appends what the doctor measures and finds to doctor.jsonl in the run folder, at step 0 and at the `steps`."""

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = steps

    def on_start(self, trainer: Trainer) -> None:
        self._lines = StepLines(trainer.out / DOCTOR, keep_until=trainer.step)
        device = trainer.processes.device
        self._batch = {key: value.to(device) for key, value in spread_samples(trainer.task, SAMPLES).items()}
        if trainer.step == 0:
            self._examine(trainer, 0)

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        if step in self.steps:
            self._examine(trainer, step)

    def close(self) -> None:
        if hasattr(self, "_lines"):
            self._lines.close()

    def _examine(self, trainer: Trainer, step: int) -> None:
        batch, model = self._batch, trainer.model
        inputs = batch["image"] if "image" in batch else batch["tokens"]
        found = diagnose(
            model, inputs, loss=lambda: trainer.task.loss(model, batch), trained=step > 0,
            clip=trainer.config.optim.clip,
        )  # fmt: skip
        findings = {finding.name: finding.severity for finding in found.findings}
        self._lines.append({"step": step, "numbers": numbers(found), "findings": findings})


def numbers(found: Diagnosis) -> dict[str, float]:
    """What the rules compare with their limits; NaN where a model has no such number."""
    blocks, joins = found.measured.blocks, [join.ratio for join in found.measured.joins]
    weights = [block.weight_gradient for block in blocks]
    first, last = blocks[0].state_gradient, blocks[-1].state_gradient
    return {
        "gamma": median(block.gamma for block in blocks),
        "update": max(block.update for block in blocks),
        "gradient_span": first / last if last else math.nan,
        "starved": min(weights) / median(weights) if median(weights) else math.nan,
        "idle_share": len(found.measured.idle) / len(blocks),
        "smallest_join": min(joins, default=math.nan),
        "rank": blocks[-1].rank,
        "largest": max(block.largest for block in blocks),
    }


def main() -> int:
    """Train the job, or resume it; 0 when it has finished, 128 + signal if it was stopped."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    config = from_dict(TrainConfig, job["config"])
    folder = Path(config.out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    own = (folder.parent / f".{folder.name}.lock").open("a")  # the lock is held until the process ends
    fcntl.lockf(own, fcntl.LOCK_EX)  # a second study waits, and finds a finished run
    while is_being_trained(folder):  # by another command
        time.sleep(WAIT_SECONDS)
    looks = job["looks"]
    callbacks: list[AnyCallback] = [GammaRecorder(every=job["look_every"], always=looks), Examiner(looks[1:2])]
    try:
        if is_run(folder):
            moved = config.data.root and not is_finished(folder)  # a finished run takes no settings
            result = resume(folder, [f"data.root={config.data.root}"] if moved else [], callbacks)
        else:
            result = train(config, callbacks)
        if not result.finished:
            return 128 + (result.signal or 0)
        for name in job["probes"]:
            probe(name, folder, config)
    except (UsageError, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _exit_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


class _OnDevice:
    """The validation batches on the device, read anew for each pass."""

    def __init__(self, batches: ValidationBatches, device: torch.device) -> None:
        self.batches, self.device = batches, device

    def __iter__(self) -> Iterator[Batch]:
        for batch, counts in self.batches:
            if counts:
                yield {key: tensor.to(self.device) for key, tensor in batch.items()}


def probe(name: str, folder: Path, config: TrainConfig) -> None:
    """Measure a probe of the finished run by loss and accuracy, unless its file exists and has no null."""
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


if __name__ == "__main__":
    sys.exit(main())
