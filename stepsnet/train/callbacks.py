"""Callbacks: called in the first process, with the `Trainer`, whose attributes they may read.

TensorBoard, WandB and MLflow are examples: each is a `Callback` with a few methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stepsnet.errors import UsageError, nearest
from stepsnet.files import read_json, write_json
from stepsnet.optional import require
from stepsnet.train.typed import flat, to_dict

if TYPE_CHECKING:
    from stepsnet.train.trainer import Trainer


IDS = "trackers.json"
"""In the run folder: what each tracker calls the run."""


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
        for name, value in numbers(part, metrics).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()


class WandB(Callback):
    """Logs configuration and metrics to Weights & Biases; a resumed run continues there.

    `options` are those of `wandb.init`, such as project, mode="offline" or tags. Its environment variables work too.
    """

    def __init__(self, **options: Any) -> None:
        self._library = require("wandb", extra="track")
        self._options, self._ended = options, False
        self._run: Any = None

    def on_start(self, trainer: Trainer) -> None:
        known = _remembered(trainer, "wandb")
        made = {"project": "stepsnet", "name": trainer.out.name, "dir": str(trainer.out), "id": known,
                "resume": "allow", "config": flat(to_dict(trainer.config))}  # fmt: skip
        self._run = self._library.init(**(made | self._options))
        _remember(trainer, "wandb", self._run.id)

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._run.log(numbers("train", metrics), step=step)

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        self._run.log(numbers("valid", metrics), step=step)

    def on_end(self, trainer: Trainer) -> None:  # noqa: ARG002
        self._ended = True

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._ended else 1)


class MLflow(Callback):
    """Logs configuration and metrics to MLflow; a resumed run continues there.

    The server or local store is that of `mlflow.set_tracking_uri` or MLFLOW_TRACKING_URI.
    """

    def __init__(self, experiment: str = "stepsnet") -> None:
        self._library, self._status = require("mlflow", extra="track"), ""
        try:
            self._library.set_experiment(experiment)
        except self._library.MlflowException as error:  # no server, or a store that this version does not allow
            raise UsageError(f"MLflow cannot be used: {str(error).splitlines()[0]}") from error

    def on_start(self, trainer: Trainer) -> None:
        known = _remembered(trainer, "mlflow")
        run = self._library.start_run(run_id=known, run_name=trainer.out.name)
        self._status = "KILLED"
        if known is None:  # MLflow refuses to change parameters
            self._library.log_params(flat(to_dict(trainer.config)))
            _remember(trainer, "mlflow", run.info.run_id)

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._library.log_metrics(numbers("train", metrics), step=step)

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        self._library.log_metrics(numbers("valid", metrics), step=step)

    def on_end(self, trainer: Trainer) -> None:  # noqa: ARG002
        self._status = "FINISHED"

    def close(self) -> None:
        if self._status:
            self._library.end_run(status=self._status)


TRACKERS: dict[str, type[Callback]] = {"wandb": WandB, "mlflow": MLflow}
"""The trackers of `stepsnet train --track NAME`."""


def make_tracker(name: str) -> Callback:
    """A tracker by its name on the command line."""
    if name not in TRACKERS:
        raise UsageError(f"There is no tracker {name!r}{nearest(name, TRACKERS)}; there are {', '.join(TRACKERS)}.")
    return TRACKERS[name]()


def numbers(part: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, as "train/loss"."""
    return {f"{part}/{name}": value for name, value in metrics.items() if isinstance(value, (int, float))}


def _remembered(trainer: Trainer, library: str) -> str | None:
    """The name that a tracker gave this run when it was started."""
    return read_json(trainer.out / IDS).get(library)


def _remember(trainer: Trainer, library: str, name: str) -> None:
    write_json(trainer.out / IDS, read_json(trainer.out / IDS) | {library: name})
