"""Does the doctor's diagnosis early in training predict which network ends with the lower loss?

`Examiner` measures a cell at the start and after 5 % of its steps. `prediction_table` compares every pair of networks
of equal cost whose losses differ clearly: does each measurement order the pair as the losses do?
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from stepsnet.analysis.doctor import Diagnosis, diagnose
from stepsnet.runs.folder import StepLines
from stepsnet.tasks.base import spread_samples
from stepsnet.train.callbacks import Callback

if TYPE_CHECKING:
    from stepsnet.train.trainer import Trainer

DOCTOR = "doctor.jsonl"
SAMPLES = 8


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
