"""The running average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from stepsnet.train.tensors import local


class WeightAverage:
    """Follows `tensors`, a model's parameters and lasting buffers by name: average ← decay · average + (1 − decay) · weights.

    Integer buffers, which have no average, are copied. Of a sharded model each process averages its own shard.
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
        """Move towards the model's present weights, once after each update of theirs."""
        torch._foreach_lerp_(self._average, self._model, 1 - self.decay)
        for own, theirs in self._counters:
            own.copy_(theirs)

    @contextmanager
    def in_the_model(self) -> Iterator[None]:
        """Within, the model has the averaged weights; afterwards its own again, to the bit."""
        own = [tensor.clone() for tensor in self._model]
        with torch.no_grad():
            torch._foreach_copy_(self._model, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._model, own)
