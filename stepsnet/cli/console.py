"""How commands print: results on standard output, progress on standard error."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from stepsnet.files import finite
from stepsnet.report.table import Table, cell_width, wrapped
from stepsnet.units import clock, si

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120
SECONDS_BETWEEN_LINES = 10.0
"""Where standard error is not a terminal: the longest silence before a first line of progress; later it may grow."""


def print_json(value: Any) -> None:
    """Print `value` as strict JSON: NaN and infinities become null."""
    print(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def columns() -> int:
    """The width of the terminal; in a file or a pipe `PIPE_WIDTH`."""
    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns


def print_table(table: Table) -> None:
    """Print `table` at most `columns()` wide."""
    print(table.text(columns(), bold=sys.stdout.isatty()) + "\n")


def print_text(text: str) -> None:
    """Print prose at most `columns()` wide."""
    print(fit(text, columns()))


def fit(text: str, width: int) -> str:
    """Every line of `text` wrapped between words. A longer word keeps its line.

    Wrapped lines are indented like the first; after a name and two blanks ("name  explanation") they begin below the
    explanation.
    """
    lines = []
    for line in text.split("\n"):
        if cell_width(line) <= width:
            lines.append(line)
            continue
        named = re.match(r" *\S+( \S+)*  +(?=\S)", line)
        start = named[0] if named and len(named[0]) <= width // 2 else line[: len(line) - len(line.lstrip())]
        first, *others = wrapped(line[len(start) :], width - cell_width(start))
        lines += [start + first, *(" " * cell_width(start) + other for other in others)]
    return "\n".join(lines)


def format_cost(figures: Mapping[str, Any]) -> list[str]:
    """Blocks, layers, parameters, MACs."""
    return [str(figures["blocks"]), str(figures["layers"]), si(figures["params"]), si(figures["macs"])]


def format_metrics(metrics: Mapping[str, float | None]) -> str:
    """loss 1.234, top1 0.567. Values that were not finite, and are None in the files, are left out."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if value is not None)


def say(message: str) -> None:
    """Print a message on standard error. While a bar is drawn there, it appears above the bar.

    It is wrapped for a terminal, or where COLUMNS is set. Else it is one line, which is easier to find in a log.
    """
    shown = sys.stderr.isatty() or "COLUMNS" in os.environ
    print(fit(message, columns()) if shown else message, file=sys.stderr, flush=True)
    Bar.last_line = time.monotonic()


class Bar:
    """The progress of one task: how much is done, a note, the rate and the time left.

    On a terminal it is drawn as a bar. Elsewhere it is a line, after ten seconds of silence and then ever less often,
    also while nothing advances; of several open bars the newest has the line. `unit` is what `total` and `advance`
    count; without it no rate is shown. A bar of unknown `total` disappears from the terminal when it is closed.
    """

    opened: ClassVar[list[Bar | None]] = []
    """All open bars, the newest last; None forbids lines."""
    last_line: ClassVar[float] = 0.0

    def __init__(
        self, description: str, total: float | None, unit: str, *, on: Console | None = None, done: float = 0
    ) -> None:
        if not self.opened:
            Bar.last_line = time.monotonic()
        self.opened.append(self)
        self.description, self.total, self.unit, self.done, self.note = description, total, unit, done, ""
        self._started, self._closed = time.monotonic(), threading.Event()
        self._steady: tuple[float, float] | None = None  # time and amount after the first advance, the warm-up
        self._drawn = sys.stderr.isatty() if on is None else on.is_terminal
        if self._drawn:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            text = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[text]}")]
            place = on or Console(stderr=True)
            self._bars = Progress(text[0], BarColumn(), text[1], console=place, transient=total is None)
            self._task = self._bars.add_task(description, total=total, completed=round(done), text="")
            self._bars.start()
        else:
            self._lines = threading.Thread(target=self._print_lines, daemon=True)
            self._lines.start()

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Count `amount` more; `note` ("loss 2.31") replaces the last one."""
        self.done += amount
        self.note = self.note if note is None else note
        self._steady = self._steady or (time.monotonic(), self.done)
        if self._drawn:
            self._bars.update(self._task, completed=self.done, text=self._figures())

    def print_line(self) -> None:
        """Print the present state as a line, unless the bar is drawn."""
        if not self._drawn:
            say(f"{self.description} {self._figures()}")

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self.opened.remove(self)
        if self._drawn:
            self._bars.stop()
        else:
            self._lines.join()

    def _print_lines(self) -> None:
        wait = SECONDS_BETWEEN_LINES
        while not self._closed.wait(wait - (time.monotonic() - Bar.last_line)):
            if self.opened[-1:] != [self]:
                self._closed.wait(SECONDS_BETWEEN_LINES / 10)
            elif time.monotonic() - Bar.last_line >= wait:
                self.print_line()
                wait = max(SECONDS_BETWEEN_LINES, (time.monotonic() - self._started) / 10)

    def _figures(self) -> str:
        """12/40  loss 2.31  3.1 models/s  0:09 left."""
        now = time.monotonic()
        since, before = self._steady or (now, self.done)
        speed = (self.done - before) / (now - since) if now > since else 0.0
        count = f"{self.done:,.0f}" if self.done or self.total is not None else ""
        count += "" if self.total is None else f"/{self.total:,.0f}"
        digits = 0 if speed >= 100 else 1 if speed >= 1 else 2
        rate = f"{speed:,.{digits}f} {self.unit}/s" if self.unit and speed else ""
        left = None if self.total is None or not speed else max(0.0, self.total - self.done) / speed
        end = f"{clock(now - self._started)} passed" if left is None else f"{clock(left)} left"
        return "  ".join(part for part in (count, self.note, rate, end) if part)


@contextmanager
def no_lines() -> Iterator[None]:
    """No bar prints a line while the body runs, which prints one text in pieces on standard output."""
    Bar.opened.append(None)
    try:
        yield
    finally:
        Bar.opened.remove(None)


@contextmanager
def progress(
    description: str, total: float | None = None, unit: str = "steps", *, on: Console | None = None
) -> Iterator[Bar]:
    """A `Bar` while the body runs. `total` and `advance` count the unit: a bar of images advances by the batch size."""
    bar = Bar(description, total, unit, on=on)
    try:
        yield bar
    finally:
        bar.close()
