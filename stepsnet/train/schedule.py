"""The learning rate over the steps. It is a function of the step alone, so a resumed run has nothing to restore."""

from __future__ import annotations

import math

from stepsnet.train.config import ScheduleConfig


def lr_share(config: ScheduleConfig, step: int, total: int, steps_per_epoch: int) -> float:
    """The share of the peak learning rate at update `step` (counted from 0) of `total`.

    It climbs linearly from `start` to 1 during the warm-up and then falls to `end`, which the last update has exactly; `steps` falls to a
    tenth at each of its drops instead.
    """
    warmup = max(config.warmup_iters, round(config.warmup_epochs * steps_per_epoch))
    if step < warmup:
        return config.start + (1 - config.start) * step / warmup
    if config.kind == "constant":
        return 1.0
    if config.kind == "steps":
        return float(0.1 ** sum(step >= round(drop * total) for drop in config.drops))
    progress = min(1.0, (step - warmup) / max(1, total - 1 - warmup))
    if config.kind == "cosine":
        return config.end + (1 - config.end) * 0.5 * (1 + math.cos(math.pi * progress))
    return config.end + (1 - config.end) * (1 - progress) ** config.power
