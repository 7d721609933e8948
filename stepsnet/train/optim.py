"""The learning rate over the steps, and the average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from stepsnet.train.config import ScheduleConfig
from stepsnet.train.distributed import local


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group to its share of `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_share"]


def warmup_steps(config: ScheduleConfig, steps_per_epoch: int) -> int:
    return max(config.warmup_iters, round(config.warmup_epochs * steps_per_epoch))


def lr_share(config: ScheduleConfig, step: int, total: int, steps_per_epoch: int) -> float:
    """The learning rate relative to its peak, at update `step` (from 0) of `total`. A function of the step alone.

    It grows linearly from `start` to 1 during the warm-up and then falls to `end` at the last update. The kind `steps`
    divides it by ten at each of its drops instead.
    """
    warmup = warmup_steps(config, steps_per_epoch)
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


class WeightAverage:
    """The exponential moving average of `tensors`: average ← decay · average + (1 − decay) · weights.

    `tensors` are the parameters and persistent buffers of a model by name. Integer buffers are copied. Of a sharded
    model, each process averages its own shard.
    """

    def __init__(self, tensors: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.tensors: dict[str, Tensor] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        floating = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
        self._model = [local(tensors[name]) for name in floating]
        self._average = [local(self.tensors[name]) for name in floating]
        self._counters = [(local(self.tensors[name]), local(tensors[name])) for name in tensors.keys() - set(floating)]

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights: call once after each update."""
        torch._foreach_lerp_(self._average, self._model, 1 - self.decay)
        for own, theirs in self._counters:
            own.copy_(theirs)

    @contextmanager
    def in_the_model(self) -> Iterator[None]:
        """Within this context the model has the averaged weights; afterwards its own again, bit-exactly."""
        own = [tensor.clone() for tensor in self._model]
        with torch.no_grad():
            torch._foreach_copy_(self._model, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._model, own)
