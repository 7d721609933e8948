"""How cost grows: time and memory of one network made deeper at fixed width and wider at fixed depth, and the exponents of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models import Model, create_model
from stepsnet.research.bench.contenders import How, ours
from stepsnet.research.bench.fit import PowerLaw
from stepsnet.research.bench.interleave import interleave
from stepsnet.research.bench.machine import describe_machine
from stepsnet.research.bench.memory import saved_per_input
from stepsnet.research.bench.passes import WHAT_IS_TIMED, random_batch
from stepsnet.research.bench.summary import Spread

DEPTHS = (12, 24, 48, 96, 192)
WIDTHS = (192, 384, 768)


@dataclass(frozen=True)
class Point:
    """One network of a series. `at` is what varies: blocks or width."""

    at: int
    plan: str
    macs: int
    seconds: list[float]
    time: Spread
    throughput: float
    saved_per_input: int
    accuracy: float | None = None


@dataclass(frozen=True)
class Series:
    """Networks along one line. `laws` are fitted over x: for time, memory, and the MACs as counted, which say what to expect."""

    label: str
    varies: str
    mode: str
    batch: int
    points: list[Point]
    laws: dict[str, PowerLaw]


def with_depth(name: str, blocks: int) -> Model:
    """The model with as many blocks, every step deepened alike at its width."""
    plans = create_model(name, device="meta").plans
    now = sum(plan.blocks for plan in plans)
    if any(depth * blocks % now for plan in plans for depth in plan.depths):
        raise UsageError(f"{name} has {now} blocks and cannot be made {blocks} deep in proportion; {now} and {2 * now} are possible")
    deeper = [StepPlan(plan.widths, tuple(depth * blocks // now for depth in plan.depths)) for plan in plans]
    return create_model(name, plan=deeper)


def with_width(name: str, width: int) -> Model:
    """The model with its last stage that wide, every step widened alike."""
    plans = create_model(name, device="meta").plans
    now = plans[-1].width
    wider = [StepPlan(tuple(_even(each * width / now) for each in plan.widths), plan.depths) for plan in plans]
    return create_model(name, plan=wider, embed_dim=wider[0].width)


def _even(width: float) -> int:
    """Widths that heads can divide: a multiple of 16 from 64 on, so that the attention of neighbours is alike; else of 2."""
    unit = 16 if width >= 64 else 2
    return max(unit * round(width / unit), 2)


MAKERS: dict[str, Callable[[str, int], Model]] = {"depth": with_depth, "width": with_width}


def run_growth(
    names: Sequence[str], *, depths: Sequence[int] = DEPTHS, widths: Sequence[int] = WIDTHS, modes: Sequence[str] = ("inference",),
    batch: int = 4, rounds: int = 7, tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Depths and widths of every named model; an empty list leaves that direction out."""
    series = [
        measure_series(name, varies, [MAKERS[varies](name, value) for value in values], values, mode, batch, rounds, tick)
        for name in names
        for varies, values in (("depth", depths), ("width", widths))
        if values
        for mode in modes
    ]
    return _document(series, modes)


def run_rows(
    rows: Mapping[str, Sequence[tuple[str, float | None]]], *, modes: Sequence[str] = ("inference",), batch: int = 8, rounds: int = 7,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Registered models with the paper's accuracies, line by line, against their blocks (Figures 6c and 6d): all take turns together."""
    series = []
    for mode in modes:
        models = {name: create_model(name) for line in rows.values() for name, _ in line}
        seconds = _seconds(list(models.values()), mode, batch, rounds, tick)
        timed = dict(zip(models, seconds, strict=True))
        for label, line in rows.items():
            points = [_point(_blocks(models[name]), models[name], timed[name], batch, accuracy) for name, accuracy in line]
            series.append(Series(label, "blocks", mode, batch, points, {}))
    return _document(series, modes)


def _document(series: Sequence[Series], modes: Sequence[str]) -> dict[str, Any]:
    return {
        "benchmark": "depth",
        "machine": describe_machine(),
        "timed": {mode: WHAT_IS_TIMED[mode] for mode in modes},
        "series": [asdict(each) for each in series],
    }


def measure_series(
    name: str, varies: str, models: Sequence[Model], values: Sequence[int], mode: str, batch: int, rounds: int, tick: Callable[[], None],
) -> Series:
    """Time all networks of a series in turns, count what they save, and fit the exponents."""
    seconds = _seconds(models, mode, batch, rounds, tick)
    points = [_point(at, model, times, batch) for at, model, times in zip(values, models, seconds, strict=True)]
    measured = {
        "time": [point.time.median for point in points],
        "memory": [float(point.saved_per_input) for point in points],
        "macs": [float(point.macs) for point in points],
    }
    laws = {what: PowerLaw.fit(values, figures) for what, figures in measured.items()} if len(set(values)) > 1 else {}
    return Series(name, varies, mode, batch, points, laws)


def _seconds(models: Sequence[Model], mode: str, batch: int, rounds: int, tick: Callable[[], None]) -> list[list[float]]:
    torch.manual_seed(0)
    passes = [ours("", model, How(mode)).one_pass(random_batch(model, batch)) for model in models]
    return interleave(passes, rounds=rounds, tick=tick)


def _point(at: int, model: Model, seconds: list[float], batch: int, accuracy: float | None = None) -> Point:
    time = Spread.of(seconds)
    macs = model.closed_form().macs
    return Point(at, model.plan, macs, seconds, time, batch / time.median, saved_per_input(model), accuracy)


def _blocks(model: Model) -> int:
    return sum(plan.blocks for plan in model.plans)
