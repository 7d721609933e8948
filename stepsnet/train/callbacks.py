"""Callbacks: called in the first process, with the `Trainer`, whose attributes they may read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stepsnet.train.trainer import Trainer


class AnyCallback(Protocol):
    """What the trainer calls; `Callback` says when. An object with these methods is enough: no base class is needed."""

    def on_start(self, trainer: Trainer, /) -> None: ...

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any], /) -> None: ...

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float], /) -> None: ...

    def on_checkpoint(self, trainer: Trainer, step: int, /) -> None: ...

    def on_end(self, trainer: Trainer, /) -> None: ...

    def close(self) -> None: ...


class Callback:
    """Does nothing; override what you need. Useful attributes of the trainer: config, task, model, optimizer, ema, out,
    step, total_steps, metrics and processes. A callback must not change the weights.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step, or the first one after a resume."""

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        """After each update. The last one is step `trainer.total_steps`."""

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """After each evaluation."""

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        """Before a checkpoint is written. Files about the steps so far should be on disk when this returns."""

    def on_end(self, trainer: Trainer) -> None:
        """After the last evaluation, when the results are written. Not called when the run is interrupted."""

    def close(self) -> None:
        """The last call, also after an error."""


class TensorBoard(Callback):
    """Writes the metrics for TensorBoard, which must be installed."""

    def on_start(self, trainer: Trainer) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(trainer.out / "tensorboard"), purge_step=trainer.step + 1)

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._write("train", step, metrics)

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        self._write("valid", step, metrics)

    def _write(self, part: str, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(f"{part}/{name}", value, step)

    def close(self) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()
