"""Results of cells, read from their run folders, and the rule that decides a comparison."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from stepsnet.files import finite, read_json
from stepsnet.report.run import early_line
from stepsnet.report.svg import binned
from stepsnet.research.studies.study import Arm, Cell, Size
from stepsnet.runs.folder import GAMMA, METRICS, read_lines, read_result

DOCTOR = "doctor.jsonl"
BINS = 60
LAST_STEPS = 20  # the training loss is the mean over these
FINISHED, FAILED = "finished", "failed"

LEAST = 0.02
"""Nats: smaller differences of losses are ignored."""
ERRORS = 2.0
RULE = (
    f"A hypothesis holds if the difference of the mean validation losses over seeds is above {ERRORS:g} standard "
    f"errors and above {LEAST:g} nats; it is refuted if that is true with the opposite sign; otherwise it is "
    "inconclusive. A comparison with a failed or missing cell is not made."
)
HOLDS, REFUTED, INCONCLUSIVE, NOT_MADE = "holds", "refuted", "inconclusive", "not compared"


@dataclass(frozen=True)
class CellResult:
    """One cell. A failed one has an error and no numbers."""

    cell: str
    seed: int
    status: str
    train_loss: float = math.nan
    valid: dict[str, float] = field(default_factory=dict)
    gamma: dict[str, float] = field(default_factory=dict)
    """The mean over depth at the first, an early and the last record, by step."""
    probes: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    words: str = ""
    """The recipe and the arguments of the run, by which a line of results.jsonl is known to be of the same study."""
    curve: tuple[Sequence[float], Sequence[float | None]] = ((), ())
    """Steps and training losses in at most BINS bins."""
    doctor: Sequence[dict[str, Any]] = ()
    """The lines of doctor.jsonl: at the start and once more, early in training."""

    @property
    def finished(self) -> bool:
        return self.status == FINISHED

    @property
    def loss(self) -> float:
        return self.valid["loss"]


def read_cell(cell: Cell, folder: Path, probes: Sequence[str] = ()) -> CellResult | None:
    """The result of the run in `folder`; None until it and its probes have finished."""
    found = read_result(folder)
    probed = {name: read_json(folder / f"{name}.json") for name in probes}
    if not found or not all(probed.values()):
        return None
    if found["loss"] is None:
        return CellResult(cell.id, cell.seed, FAILED, error="the validation loss is not finite")
    for name, tables in probed.items():
        if has_null(tables):
            error = f"the probe {name} of the trained model is not finite everywhere"
            return CellResult(cell.id, cell.seed, FAILED, error=error)
    steps = read_lines(folder / METRICS)
    looks = read_lines(folder / GAMMA)
    shown = (looks[0], early_line(looks), looks[-1]) if looks else ()
    return CellResult(
        cell.id, cell.seed, FINISHED,
        train_loss=mean(number(line["loss"]) for line in steps[-LAST_STEPS:]),
        valid={name: value for name, value in found.items() if name != "step" and value is not None},
        gamma={str(look["step"]): mean(map(number, look["gamma"])) for look in shown},
        probes=probed,
        words=cell.words(),
        curve=binned([line["step"] for line in steps], [number(line["loss"]) for line in steps], bins=BINS),
        doctor=read_lines(folder / DOCTOR),
    )


class ResultLines:
    """results.jsonl: one line per cell as it ends; the last line of a cell is valid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: dict[str, dict[str, Any]] = {}
        for raw in path.read_bytes().splitlines() if path.exists() else ():
            with suppress(ValueError):  # a line cut off by a crash stays, because another process may be writing it
                line = json.loads(raw)
                self.last[line["cell"]] = line

    def add(self, found: CellResult) -> None:
        """Append in one write, unless the same line is there."""
        line = finite(asdict(found))
        if self.last.get(found.cell) == line:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            cut_off = (size := self.path.stat().st_size) and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, (b"\n" if cut_off else b"") + json.dumps(line).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        self.last[found.cell] = line

    def known(self, cell: Cell) -> CellResult | None:
        """The result of the cell's last attempt. A finished one counts only if its run had the registered words."""
        line = self.last.get(cell.id)
        if line is None or (line["status"] == FINISHED and line.get("words") != cell.words()):
            return None
        return CellResult(**line | {"train_loss": number(line["train_loss"])})


@dataclass(frozen=True)
class Results:
    """The results so far of one size of a study; `pool` is the folder of its run folders."""

    size: Size
    found: Mapping[str, CellResult]
    pool: Path = Path()

    def finished(self, arm: Arm) -> list[CellResult]:
        """The finished cells of an arm, at its best learning rate if rates are searched."""
        tuned = self.size.tuned(arm, self.found)
        cells = (self.found.get(Cell(tuned, seed).id) for seed in self.size.seeds) if tuned else ()
        return [cell for cell in cells if cell is not None and cell.finished]

    def failed(self) -> list[CellResult]:
        return [cell for cell in self.found.values() if not cell.finished]

    def missing(self) -> list[str]:
        """The cells that have not ended; those whose learning rate is open under the name of their arm."""
        cells = [cell.id for cell in self.size.cells(self.found) if cell.id not in self.found]
        open_arms = [arm for arm in self.size.arms if self.size.tuned(arm, self.found) is None]
        return [*cells, *(Cell(arm, seed).id for seed in self.size.seeds for arm in open_arms)]

    def arm(self, key: str) -> Arm | None:
        return next((arm for arm in self.size.arms if arm.key == key), None)

    def values(
        self, key: str, value: Callable[[CellResult], float] = lambda cell: cell.loss
    ) -> list[float] | None:
        """One number per seed; None if the arm is not in the study, or one of its cells failed or is missing."""
        arm = self.arm(key)
        cells = self.finished(arm) if arm else []
        return [value(cell) for cell in cells] if cells and len(cells) == len(self.size.seeds) else None


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds and its standard error, NaN for a single seed."""
    return mean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan


def with_error(values: Sequence[float], digits: int = 3) -> str:
    """1.234 ± 0.005; without the error for a single seed."""
    if not values:
        return "–"
    centre, deviation = mean_and_error(values)
    return f"{centre:.{digits}f}" + (f" ± {deviation:.{digits}f}" if math.isfinite(deviation) else "")


def number(value: float | None) -> float:
    """A number from JSON, where NaN is null."""
    return math.nan if value is None else value


def has_null(value: Any) -> bool:
    """Whether a number is null anywhere in a JSON value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(has_null, inside))


@dataclass(frozen=True)
class Outcome:
    """The verdict on one hypothesis. A positive difference is in its favour."""

    hypothesis: str
    verdict: str
    difference: float = math.nan
    error: float = math.nan

    def __str__(self) -> str:
        if not math.isfinite(self.difference):
            return f"{self.hypothesis}: {self.verdict}"
        error = f"± {self.error:.3f} nats" if math.isfinite(self.error) else "nats, one seed"
        return f"{self.hypothesis}: {self.verdict} ({self.difference:+.3f} {error})"


def decide(hypothesis: str, difference: float, error: float) -> Outcome:
    """The rule. A single seed has no standard error and is inconclusive."""
    clear = abs(difference) > max(ERRORS * error, LEAST) and math.isfinite(error)
    verdict = INCONCLUSIVE if not clear else HOLDS if difference > 0 else REFUTED
    return Outcome(hypothesis, verdict, difference, error)


def contrast(
    results: Results, hypothesis: str, *, better: Sequence[str], worse: Sequence[str],
    value: Callable[[CellResult], float] = lambda cell: cell.loss,
) -> Outcome:
    """The losses of the arms `worse` less those of `better`; seeds are independent, so squared errors add up."""
    values = [(sign, results.values(key, value)) for keys, sign in ((better, -1.0), (worse, 1.0)) for key in keys]
    if any(found is None for _, found in values):
        return Outcome(hypothesis, NOT_MADE)
    parts = [(sign, *mean_and_error(found)) for sign, found in values if found is not None]
    error = math.sqrt(sum(error**2 for *_, error in parts))
    return decide(hypothesis, sum(sign * centre for sign, centre, _ in parts), error)


def paired(results: Results, hypothesis: str, key: str, difference: Callable[[CellResult], float]) -> Outcome:
    """A difference within each cell of one arm, such as between two ways to damage one trained model."""
    values = results.values(key, difference)
    return decide(hypothesis, *mean_and_error(values)) if values else Outcome(hypothesis, NOT_MADE)
