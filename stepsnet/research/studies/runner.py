"""Runs the cells of a study, each in its own process with one thread, none twice, unfinished ones from a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Protocol

import torch

from stepsnet.cpu import has_bf16
from stepsnet.errors import UsageError
from stepsnet.files import read_json, write_json
from stepsnet.research.studies.results import FAILED, CellResult, ResultLines, Results, read_cell
from stepsnet.research.studies.study import Arm, Cell, Size, Study
from stepsnet.runs.folder import METRICS, is_run, last_line
from stepsnet.train.build import task_of
from stepsnet.train.config import read_config
from stepsnet.train.distributed import stop_on_signals
from stepsnet.train.typed import flat, to_dict

POLL_SECONDS = 0.25
PINNED = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class StudyFiles:
    """The files of a study: the pool of cells, shared by all studies below `out`, and the study's own folder."""

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


class StudyProgress(Protocol):
    """Called while a study runs."""

    def steps(self, amount: int, note: str) -> None:
        """`amount` more updates were made; `note` names the running cells."""

    def ended(self, found: CellResult) -> None:
        """A cell finished or failed."""


class Silent:
    """No progress."""

    def steps(self, amount: int, note: str) -> None:
        """Nothing to do."""

    def ended(self, found: CellResult) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class Ended:
    """The results so far, and the signal that stopped the study, if one did."""

    results: Results
    signal: int | None = None
    out_of_time: bool = False


def collect(place: StudyFiles) -> Results:
    """The results so far; a `UsageError` if a cell's folder holds a run of another configuration.

    A line of results.jsonl stands for a run folder that is not there, so that published results can be continued; the
    finished lines of other studies below `out` count too, except in studies with probes.
    """
    lines = ResultLines(place.folder / "results.jsonl")
    others = [] if place.study.probes else [ResultLines(path) for path in sorted(place.out.glob("*/results.jsonl"))]
    found: dict[str, CellResult] = {}
    size = place.chosen()
    for cells in (size.searched, lambda: size.cells(found)):  # the search decides what the other cells are
        for cell in cells():
            folder = place.pool / cell.id
            if is_run(folder):
                check(cell, folder)
            shared = (known for other in others if (known := other.known(cell)) and known.finished)
            if known := read_cell(cell, folder, place.study.probes) or next(shared, None) or lines.known(cell):
                found[cell.id] = known
    return Results(size, found, place.pool)


def check(cell: Cell, folder: Path) -> None:
    """Refuse a run whose configuration is not the registered one, except for the folders of run and data."""
    there, registered = (flat(to_dict(config)) for config in (read_config(folder), cell.arm.config(cell.seed)))
    for key in {**there, **registered}:
        found, wanted = there.get(key), registered.get(key)
        if key not in ("out", "data.root") and found != wanted:
            raise UsageError(f"{folder} was run with {key}={found}, but the study registers {key}={wanted}; "
                             "give another --out.")  # fmt: skip


def step_seconds(arm: Arm, cache: Path, steps: int = 3) -> float:
    """Processor time of one training step of the arm's network on one thread: the fastest of a few, kept in `cache`."""
    from stepsnet.models import create_model
    from stepsnet.research.bench.timing import count_classes, random_batch, threads, training_pass

    config = arm.config(0)
    bf16 = config.precision == "bf16" and has_bf16()
    key = json.dumps({**arm.model_options(), "batch_size": config.batch_size, "bf16": bf16}, sort_keys=True)
    known = read_json(cache)
    if key not in known:
        with threads(1):
            model = create_model(**arm.model_options()).train()
            optimizer = torch.optim.AdamW(model.parameters())
            train = training_pass(model, random_batch(model, config.batch_size), count_classes(model), bf16=bf16)
            times = []
            for _ in range(1 + steps):
                began = time.process_time()
                train()
                optimizer.step()
                times.append(time.process_time() - began)
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, {**known, key: min(times[1:])})
    return float(read_json(cache)[key])


def core_hours(place: StudyFiles, tick: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Hours of one core for all cells of each arm, its search included; training steps only."""
    size, hours = place.chosen(), {}
    counted: set[str] = set()
    for arm in size.arms:
        tries = size.search.cells(arm).values() if size.search else ()
        new = [cell.arm for cell in tries if cell.id not in counted]
        counted |= {cell.id for cell in tries}
        runs = [*new, *(arm for _ in size.seeds)]
        hours[arm.key] = sum(run.steps() * step_seconds(run, place.out / "step_times.json") for run in runs) / 3600
        tick()
    return hours


def left(place: StudyFiles, only: str = "*") -> list[Cell]:
    """The cells that are to be run, as far as their learning rates are known; failed ones are tried again."""
    found = collect(place).found
    cells = [cell for cell in place.chosen().cells(found) if fnmatch(cell.id, only)]
    return [cell for cell in cells if cell.id not in found or not found[cell.id].finished]


def ahead(place: StudyFiles, only: str = "*") -> list[Cell]:
    """For counting: `left`, and the cells whose learning rate the same run will find, at the first rate."""
    size, now = place.chosen(), left(place, only)
    if size.search is None:
        return now
    found = collect(place).found
    known = {*found, *(cell.id for cell in now)}
    opened = [
        arm.renamed(f"_lr{size.search.rates[0]:g}")
        for arm in size.arms
        if not size.tuned(arm, found) and all(cell.id in known for cell in size.search.cells(arm).values())
    ]
    later = [Cell(arm, seed) for arm in opened for seed in size.seeds]
    return [*now, *(cell for cell in later if fnmatch(cell.id, only))]


def steps_left(place: StudyFiles, cells: list[Cell]) -> int:
    """Updates that these cells still need."""
    return sum(cell.arm.steps() - _steps_done(place.pool / cell.id) for cell in cells)


def check_data(place: StudyFiles, cells: list[Cell], roots: Mapping[str, str]) -> None:
    """Read the data of these cells once, so that an error in them is reported before any cell runs."""
    study = f"{place.study.name} of size {place.size}"
    known = {setting.data for setting in place.chosen().settings() if setting.data}
    if unknown := [key for key in roots if key not in known]:
        needed = ", ".join(sorted(known)) or "no data"
        raise UsageError(f"--data {unknown[0]}: {study} has no such data; it needs {needed}.")
    for cell in {cell.arm.setting.key: cell for cell in cells if cell.arm.setting.data}.values():
        setting = cell.arm.setting
        if setting.data not in roots:
            raise UsageError(f"{study} needs data: give --data {setting.data}=PATH ({setting.about}).")
        try:
            task_of(cell.arm.config(cell.seed, root=roots[setting.data]))
        except UsageError as error:
            raise UsageError(f"--data {setting.data}={roots[setting.data]}: {error}") from error


def run_study(
    place: StudyFiles, *, roots: Mapping[str, str], workers: int, only: str = "*", hours: float | None = None,
    progress: StudyProgress | None = None,
) -> Ended:
    """Run the cells that are left, `workers` at a time, for at most `hours`."""
    progress = progress or Silent()
    waiting = left(place, only)
    check_data(place, waiting, roots)
    lines = ResultLines(place.folder / "results.jsonl")
    for known in collect(place).found.values():
        lines.add(known)
    deadline = time.monotonic() + 3600 * hours if hours is not None else float("inf")
    running: list[_Process] = []
    started: set[str] = set()
    with stop_on_signals(launched=False) as request:
        try:
            while (waiting or running) and not request and time.monotonic() < deadline:
                while waiting and len(running) < workers:
                    cell = waiting.pop(0)
                    started.add(cell.id)
                    running.append(_Process(place, cell, roots.get(cell.arm.setting.data, "")))
                names = ", ".join(process.cell.id for process in running)
                progress.steps(sum(process.progress() for process in running), names)
                for process in [process for process in running if process.ended()]:
                    running.remove(process)
                    found = process.result()
                    lines.add(found)
                    progress.ended(found)
                    if place.chosen().search:  # a finished search adds cells
                        waiting = [cell for cell in left(place, only) if cell.id not in started]
                time.sleep(POLL_SECONDS)
        finally:
            for process in running:
                process.stop()
    return Ended(collect(place), request.signal, time.monotonic() >= deadline)


class _Process:
    """A running cell."""

    def __init__(self, place: StudyFiles, cell: Cell, root: str) -> None:
        self.cell, self.probes, self.folder = cell, place.study.probes, place.pool / cell.id
        self.log = place.out / "logs" / f"{cell.id}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._seen = _steps_done(self.folder)
        setting = cell.arm.setting
        job = {"config": to_dict(cell.arm.config(cell.seed, self.folder, root)), "looks": setting.looks,
               "look_every": setting.look_every, "probes": self.probes}  # fmt: skip
        paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stepsnet.research.studies.cell"], stdin=subprocess.PIPE, stdout=log, stderr=log,
                env={**os.environ, **PINNED, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C reaches only the study, which then stops its cells
            )
        self._stdin: IO[bytes] = self._process.stdin  # type: ignore[assignment]  # not None because of PIPE
        with suppress(BrokenPipeError):  # it has already exited; its log has the reason
            self._stdin.write((json.dumps(job) + "\n").encode())
            self._stdin.flush()  # it stays open: its end tells the cell that the study has ended

    def progress(self) -> int:
        """Updates made since the last call."""
        before, self._seen = self._seen, max(self._seen, _steps_done(self.folder))
        return self._seen - before

    def ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> CellResult:
        """The result; a cell that ended without finishing has failed."""
        self._stdin.close()
        found = read_cell(self.cell, self.folder, self.probes)
        if found is not None:
            return found
        code = self._process.returncode
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        why = f"killed by signal {-code}, possibly out of memory" if code < 0 else f"exit code {code}"
        return CellResult(self.cell.id, self.cell.seed, FAILED, error=lines[-1] if lines and code >= 0 else why)

    def stop(self) -> None:
        """Ask it to save and exit, and wait for it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        self._stdin.close()


def _steps_done(folder: Path) -> int:
    return int(last_line(folder / METRICS).get("step", 0))
