"""Runs the cells of a study: each an own process with one thread, none twice, on from where they were, whatever ended the last attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Protocol

from stepsnet.errors import UsageError
from stepsnet.research.studies.results import FAILED, Measured, ResultLines, Results, measured
from stepsnet.research.studies.study import Cell, Size, Study
from stepsnet.runs import folder as rundir
from stepsnet.train.build import task_of
from stepsnet.train.config import read_config
from stepsnet.train.signals import stop_on_signals
from stepsnet.train.typed import flat, to_dict

POLL_SECONDS = 0.25
PINNED = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
LOOK_EVERY = 20  # steps between looks at γ


@dataclass(frozen=True)
class Place:
    """Where a study's files are: the pool of cells, which all studies below `out` share, and the study's own."""

    out: Path
    study: Study
    size: str

    @property
    def pool(self) -> Path:
        return self.out / "cells"

    @property
    def folder(self) -> Path:
        return self.out / f"{self.study.name}-{self.size}"

    def chosen(self) -> Size:
        return self.study.sizes[self.size]


class Watch(Protocol):
    """Told what happens."""

    def steps(self, amount: int, note: str) -> None:
        """`amount` more updates were made; `note` says which cells are at work."""

    def ended(self, found: Measured) -> None:
        """A cell finished or failed."""


class Unwatched:
    """Nobody looks."""

    def steps(self, amount: int, note: str) -> None:
        """Nothing to do."""

    def ended(self, found: Measured) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class Ended:
    """What is known, and the signal that stopped the study, if one did."""

    results: Results
    signal: int | None = None
    out_of_time: bool = False


def collect(place: Place) -> Results:
    """What is known so far; every cell that has a folder is the registered one, or a `UsageError` says where it is not."""
    lines = ResultLines(place.folder / "results.jsonl")
    found = {}
    for cell in place.chosen().cells():
        folder = place.pool / cell.id
        if rundir.is_run(folder):
            check(cell, folder)
        if known := measured(cell, folder, place.study.probes) or lines.failure(cell):
            found[cell.id] = known
    return Results(place.chosen(), found, place.pool)


def check(cell: Cell, folder: Path) -> None:
    """The run in `folder` is the one that is registered, but for where it lies and where its data do."""
    there, registered = (flat(to_dict(config)) for config in (read_config(folder), cell.arm.config(cell.seed)))
    for key in {**there, **registered}:
        found, wanted = there.get(key), registered.get(key)
        if key not in ("out", "data.root") and found != wanted:
            raise UsageError(f"{folder} was run with {key}={found}, but the study registers {key}={wanted}; give another --out.")


def left(place: Place, only: str = "*") -> list[Cell]:
    """The cells that are still to be run; one that failed is tried again."""
    found = collect(place).found
    return [cell for cell in place.chosen().cells() if fnmatch(cell.id, only) and (cell.id not in found or found[cell.id].status == FAILED)]


def steps_left(place: Place, cells: list[Cell]) -> int:
    """Updates that these cells still need."""
    return sum(cell.arm.steps() - _steps_done(place.pool / cell.id) for cell in cells)


def check_data(place: Place, cells: list[Cell], roots: Mapping[str, str]) -> None:
    """Read the data of these cells once, so that what is wrong with them is said before any cell runs, and not by each."""
    known = {setting.data for setting in place.chosen().settings() if setting.data}
    if unknown := [key for key in roots if key not in known]:
        needed = ", ".join(sorted(known)) or "no data"
        raise UsageError(f"--data {unknown[0]}: {place.study.name} of size {place.size} has no such data; it needs {needed}.")
    for cell in {cell.arm.setting.key: cell for cell in cells if cell.arm.setting.data}.values():
        setting = cell.arm.setting
        if setting.data not in roots:
            raise UsageError(f"{place.study.name} of size {place.size} needs data: give --data {setting.data}=PATH ({setting.about}).")
        try:
            task_of(cell.arm.config(cell.seed, root=roots[setting.data]))
        except UsageError as error:
            raise UsageError(f"--data {setting.data}={roots[setting.data]}: {error}") from error


def run_study(
    place: Place, *, roots: Mapping[str, str], workers: int, only: str = "*", hours: float | None = None, watch: Watch | None = None
) -> Ended:
    """Run what is left, `workers` cells at a time, for at most `hours`."""
    watch = watch or Unwatched()
    waiting = left(place, only)
    check_data(place, waiting, roots)
    lines = ResultLines(place.folder / "results.jsonl")
    for known in collect(place).found.values():
        lines.add(known)
    deadline = time.monotonic() + 3600 * hours if hours is not None else float("inf")
    running: list[_Process] = []
    with stop_on_signals(launched=False) as request:
        try:
            while (waiting or running) and not request and time.monotonic() < deadline:
                while waiting and len(running) < workers:
                    cell = waiting.pop(0)
                    running.append(_Process(place, cell, roots.get(cell.arm.setting.data, "")))
                watch.steps(sum(process.progress() for process in running), ", ".join(process.cell.id for process in running))
                for process in [process for process in running if process.ended()]:
                    running.remove(process)
                    found = process.result()
                    lines.add(found)
                    watch.ended(found)
                time.sleep(POLL_SECONDS)
        finally:
            for process in running:
                process.stop()
    return Ended(collect(place), request.signal, time.monotonic() >= deadline)


class _Process:
    """A cell at work."""

    def __init__(self, place: Place, cell: Cell, root: str) -> None:
        self.cell, self.probes, self.folder = cell, place.study.probes, place.pool / cell.id
        self.log = place.out / "logs" / f"{cell.id}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._seen = _steps_done(self.folder)
        job = {"config": to_dict(cell.arm.config(cell.seed, self.folder, root)), "looks": cell.arm.setting.looks,
               "look_every": LOOK_EVERY, "probes": self.probes}
        paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stepsnet.research.studies.cell"], stdin=subprocess.PIPE, stdout=log, stderr=log,
                env={**os.environ, **PINNED, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the study, which then asks its cells to save
            )
        self._stdin: IO[bytes] = self._process.stdin  # type: ignore[assignment]  # asked for by PIPE
        with suppress(BrokenPipeError):  # it is gone already, and its log says why
            self._stdin.write((json.dumps(job) + "\n").encode())
            self._stdin.flush()  # and open it stays: its end tells the cell that the study is no more

    def progress(self) -> int:
        """Updates made since the last call."""
        before, self._seen = self._seen, max(self._seen, _steps_done(self.folder))
        return self._seen - before

    def ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> Measured:
        """What came of it; whatever did not finish has failed."""
        self._stdin.close()
        found = measured(self.cell, self.folder, self.probes)
        if found is not None:
            return found
        code = self._process.returncode
        said = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        why = f"killed by signal {-code}, perhaps for lack of memory" if code < 0 else said[-1] if said else f"exit code {code}"
        return Measured(self.cell.id, self.cell.seed, FAILED, error=why)

    def stop(self) -> None:
        """Ask it to save and leave, and wait until it has."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        self._stdin.close()


def _steps_done(folder: Path) -> int:
    return int(rundir.last_line(folder / rundir.METRICS).get("step", 0))
