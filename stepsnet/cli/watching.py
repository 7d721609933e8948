"""What `stepsnet train` and `stepsnet resume` share: who watches a run, and what is said when it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.train.callbacks import AnyCallback, Callback, TensorBoard

if TYPE_CHECKING:
    from stepsnet.train.trainer import Result, Trainer

SECONDS_BETWEEN_LINES = 10.0
FAILED = 1


class Progress(Callback):
    """Loss, rate and time left on standard error: a bar on a terminal, else a line every few seconds."""

    def on_start(self, trainer: Trainer) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        from stepsnet.cli.console import errors

        self._console, self._unit = errors, trainer.task.unit
        self._said = time.monotonic()
        self._steady: tuple[int, float] | None = None  # step and time from which on the pace is a fair sample: after the first step
        self._rate = 0.0
        columns = (TextColumn("{task.fields[what]}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
                   TimeRemainingColumn(compact=True), TextColumn("left"))
        self._bars = Bars(*columns, console=errors, disable=not errors.is_terminal, speed_estimate_period=120)
        self._task = self._bars.add_task("", total=trainer.total_steps, completed=trainer.step, what=str(trainer.out), note="")
        self._bars.start()

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        now, rate = time.monotonic(), metrics[self._unit] / max(metrics["seconds"], 1e-9)
        if self._steady is None:
            self._steady = (step, now)
        self._rate = 0.9 * self._rate + 0.1 * rate if step > self._steady[0] + 1 else rate
        note = f"loss {metrics['loss']:.4g}  {self._rate:,.0f} {self._unit}/s"
        self._bars.update(self._task, completed=step, note=note)
        if not self._console.is_terminal and (now - self._said > SECONDS_BETWEEN_LINES or step == trainer.total_steps):
            self._said = now
            left = (now - self._steady[1]) / max(1, step - self._steady[0]) * (trainer.total_steps - step)
            self._console.print(f"step {step}/{trainer.total_steps}  {note}  {clock(left)} left", soft_wrap=True)

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        self._console.print(f"step {step}  validation: {in_words(metrics)}", soft_wrap=True)

    def on_end(self, trainer: Trainer) -> None:
        if skipped := trainer.task.train.skipped:
            self._console.print(f"{skipped} unreadable samples were skipped.")

    def close(self) -> None:
        if hasattr(self, "_bars"):
            self._bars.stop()


class Report(Callback):
    """Writes report.html at the end."""

    def on_end(self, trainer: Trainer) -> None:
        from stepsnet.report.run import run_report

        run_report(trainer.out)


def watchers() -> list[AnyCallback]:
    """Everybody who watches a run that was started from the command line."""
    from stepsnet.analysis import GammaRecorder

    board: list[AnyCallback] = [TensorBoard()] if find_spec("tensorboard") else []
    return [Progress(), GammaRecorder(), *board, Report()]


def carry_out(run: Callable[[Sequence[AnyCallback]], Result], *, json: bool) -> int:
    """Run under the eyes of the watchers, say how it ended, and give the exit code: 0, 1 if it failed, 128 + signal if it was stopped."""
    from torch.distributed.elastic.multiprocessing.errors import record

    from stepsnet.cli.console import print_json
    from stepsnet.errors import RunFailed
    from stepsnet.train.distributed import launched

    first = os.environ.get("RANK", "0") == "0"
    try:
        result = (record(run) if launched() else run)(watchers())  # `record`: torchrun then shows the error that came first
    except RunFailed as failure:
        print(failure, file=sys.stderr)
        return FAILED
    assert result is not None  # torch's `record` answers so after SystemExit, which nobody raises here
    if first and json:
        print_json({"out": str(result.out), "step": result.step, "total_steps": result.total_steps, "finished": result.finished,
                    "metrics": result.metrics})
    elif first and result.finished:
        report = result.out / "report.html"
        print(f"Finished after {result.step} steps: {in_words(result.metrics)}.\nWeights and curves are in {result.out}; look at {report}.")
    elif first:
        print(f"Stopped at step {result.step} of {result.total_steps} and saved; go on with: stepsnet resume {result.out}")
    return 0 if result.finished else 128 + (result.signal or 0)


def in_words(metrics: Mapping[str, float | None]) -> str:
    """loss 1.234, top1 0.567; what was not finite, and so is not in the files, is left out."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if value is not None)


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def existing_run(folder: str) -> Path:
    """The path of a run given on the command line; where there is none, a sentence with the nearest of its neighbours."""
    from stepsnet.errors import UsageError, nearest
    from stepsnet.runs.folder import is_run

    path = Path(folder)
    if not is_run(path):
        beside = [str(entry) for entry in path.parent.iterdir() if is_run(entry)] if path.parent.is_dir() else []
        raise UsageError(f"There is no run in {path}{nearest(str(path), beside)} (`stepsnet runs` lists them).")
    return path
