"""What came of the cells, read from their run folders."""

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
from stepsnet.research.studies.study import Arm, Cell, Size
from stepsnet.runs.folder import GAMMA, METRICS, read_lines, read_result

LAST_STEPS = 20  # of training, whose mean is the training loss
FINISHED, FAILED = "finished", "failed"


@dataclass(frozen=True)
class Measured:
    """One cell. A failed one has an error and no numbers."""

    cell: str
    seed: int
    status: str
    train_loss: float = math.nan
    valid: dict[str, float] = field(default_factory=dict)
    gamma: dict[str, float] = field(default_factory=dict)
    """The mean over depth at the first look, the early one and the last, under their steps."""
    probes: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def loss(self) -> float:
        return self.valid["loss"]


def measured(cell: Cell, folder: Path, probes: Sequence[str] = ()) -> Measured | None:
    """What the finished run in `folder` found; None while it, or one of its probes, is not finished."""
    found = read_result(folder)
    looked = {name: read_json(folder / f"{name}.json") for name in probes}
    if not found or not all(looked.values()):
        return None
    if found["loss"] is None:
        return Measured(cell.id, cell.seed, FAILED, error="the validation loss is not finite")
    for name, tables in looked.items():
        if has_null(tables):
            return Measured(cell.id, cell.seed, FAILED, error=f"what {name} measured on the trained model is not finite everywhere")
    steps = read_lines(folder / METRICS)
    looks = read_lines(folder / GAMMA)
    shown = (looks[0], early_line(looks), looks[-1]) if looks else ()
    return Measured(
        cell.id, cell.seed, FINISHED,
        train_loss=mean(_number(line["loss"]) for line in steps[-LAST_STEPS:]),
        valid={name: value for name, value in found.items() if name != "step" and value is not None},
        gamma={str(look["step"]): mean(map(_number, look["gamma"])) for look in shown},
        probes=looked,
    )


class ResultLines:
    """results.jsonl: one line a cell as it ends; of several for one cell the last holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: dict[str, dict[str, Any]] = {}
        for raw in path.read_bytes().splitlines() if path.exists() else ():
            with suppress(ValueError):  # a line that was cut off by a crash is no line; it stays, for another process may be writing
                line = json.loads(raw)
                self.last[line["cell"]] = line

    def add(self, found: Measured) -> None:
        """Append in one write, unless the very same is there already."""
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

    def failure(self, cell: Cell) -> Measured | None:
        """How the cell failed when it was last tried, if it did."""
        line = self.last.get(cell.id)
        return Measured(cell.id, cell.seed, FAILED, error=line["error"]) if line and line["status"] == FAILED else None


@dataclass(frozen=True)
class Results:
    """All that is known of one size of a study; `pool` is the folder of its run folders."""

    size: Size
    found: Mapping[str, Measured]
    pool: Path = Path()

    def finished(self, arm: Arm) -> list[Measured]:
        cells = (self.found.get(Cell(arm, seed).id) for seed in self.size.seeds)
        return [cell for cell in cells if cell is not None and cell.status == FINISHED]

    def failed(self) -> list[Measured]:
        return [cell for cell in self.found.values() if cell.status == FAILED]

    def missing(self) -> list[Cell]:
        return [cell for cell in self.size.cells() if cell.id not in self.found]

    def arm(self, key: str) -> Arm | None:
        return next((arm for arm in self.size.arms if arm.key == key), None)

    def values(self, key: str, what: Callable[[Measured], float] = lambda cell: cell.loss) -> list[float] | None:
        """One number a seed, or None if the arm is not in the study, or one of its cells failed or is missing: no comparison then."""
        arm = self.arm(key)
        cells = self.finished(arm) if arm else []
        return [what(cell) for cell in cells] if cells and len(cells) == len(self.size.seeds) else None


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds and its standard error, which a single seed does not have (NaN)."""
    return mean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan


def spread(values: Sequence[float], digits: int = 3) -> str:
    """1.234 ± 0.005, without the error where one seed has none."""
    if not values:
        return "–"
    centre, deviation = mean_and_error(values)
    return f"{centre:.{digits}f}" + (f" ± {deviation:.{digits}f}" if math.isfinite(deviation) else "")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def has_null(value: Any) -> bool:
    """Whether a number is missing anywhere in what JSON gave."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(has_null, inside))
