"""What the commands say and how: results on standard output, progress on standard error and only where somebody can watch it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from stepsnet.files import finite

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Print `value` as JSON that any parser reads: a NaN or an infinity, which JSON does not know, becomes null."""
    print(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


class Bar(Protocol):
    """A running progress bar."""

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Say that `amount` more is done; `note` ("loss 2.31") replaces the text at the end of the line."""


@contextmanager
def progress(description: str, total: float | None = None, unit: str = "steps", *, on: Console = errors) -> Iterator[Bar]:
    """Show a bar with the rate in `unit` a second and the time left. Silent where `on` is not a terminal.

    `total` and the amounts given to `advance` count the unit, so a bar of images advances by the size of a batch. Without a
    total the bar only shows that something moves, and how fast.
    """
    if not on.is_terminal:
        yield _Silent()
        return
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rate(unit),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True), TextColumn("{task.fields[note]}"),
    ]
    with Progress(*columns, console=on) as bars:
        yield _Shown(bars, bars.add_task(description, total=total, note=""))


class _Silent:
    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Nobody is watching."""


class _Shown:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        if note is not None:
            self._bars.update(self._task, note=note)
        self._bars.advance(self._task, amount)


class _Rate(ProgressColumn):
    """How many units a second: 0.31, 48.2, 1,204."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        digits = 0 if speed >= 100 else 1 if speed >= 1 else 2
        return Text(f"{speed:,.{digits}f} {self._unit}/s")
