"""How time and memory grow with depth at fixed width and with width at fixed depth, and the fitted exponents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models import Model, create_model
from stepsnet.research.bench.memory import saved_per_input
from stepsnet.research.bench.speed import How, ours
from stepsnet.research.bench.timing import WHAT_IS_TIMED, Quartiles, describe_machine, interleave, random_batch

DEPTHS = (12, 24, 48, 96, 192)
WIDTHS = (192, 384, 768)


@dataclass(frozen=True)
class PowerLaw:
    """y ≈ factor · x^exponent, fitted in logarithms; `error`: the exponent's standard error, 0 for two points."""

    exponent: float
    error: float
    factor: float

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> PowerLaw:
        if len(set(x)) < 2 or len(x) != len(y) or min(*x, *y) <= 0:
            raise UsageError(f"a power law needs positive values at two different x, not {list(y)} at {list(x)}")
        u, v = [math.log(value) for value in x], [math.log(value) for value in y]
        mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
        spread = sum((value - mean_u) ** 2 for value in u)
        slope = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / spread
        intercept = mean_v - slope * mean_u
        left = sum((b - intercept - slope * a) ** 2 for a, b in zip(u, v, strict=True))
        error = math.sqrt(left / (len(u) - 2) / spread) if len(u) > 2 else 0.0
        return cls(slope, error, math.exp(intercept))


@dataclass(frozen=True)
class Point:
    """One network of a series. `at` is what varies: blocks or width."""

    at: int
    plan: str
    macs: int
    seconds: list[float]
    time: Quartiles
    throughput: float
    saved_per_input: int
    accuracy: float | None = None


@dataclass(frozen=True)
class Series:
    """Networks of one kind that differ in depth or width. `laws`: the exponents of time, memory and MACs."""

    label: str
    varies: str
    mode: str
    batch: int
    points: list[Point]
    laws: dict[str, PowerLaw]


def with_depth(name: str, blocks: int) -> Model:
    """The model with `blocks` blocks, all steps deepened in proportion."""
    plans = create_model(name, device="meta").plans
    now = sum(plan.blocks for plan in plans)
    unit = now // math.gcd(now, *(depth for plan in plans for depth in plan.depths))
    if blocks % unit:
        possible = f"multiples of {unit} are possible"
        raise UsageError(f"{name} has {now} blocks in its plan, which cannot be scaled to {blocks} blocks; {possible}")
    deeper = [StepPlan(plan.widths, tuple(depth * blocks // now for depth in plan.depths)) for plan in plans]
    return create_model(name, plan=deeper)


def with_width(name: str, width: int) -> Model:
    """The model with a last stage of this width, all steps widened in proportion."""
    plans = create_model(name, device="meta").plans
    now = plans[-1].width
    wider = [StepPlan(tuple(_even(each * width / now) for each in plan.widths), plan.depths) for plan in plans]
    if wider[-1].width != width:
        raise UsageError(f"{name} cannot have width {width}; the nearest is {wider[-1].width}")
    return create_model(name, plan=wider, embed_dim=wider[0].width)


def _even(width: float) -> int:
    """The nearest width that attention heads can divide: a multiple of 16 from 64 on, below that of 2."""
    unit = 16 if width >= 64 else 2
    return max(unit * round(width / unit), 2)


MAKERS: dict[str, Callable[[str, int], Model]] = {"depth": with_depth, "width": with_width}


def run_growth(
    names: Sequence[str], *, depths: Sequence[int] = DEPTHS, widths: Sequence[int] = WIDTHS,
    modes: Sequence[str] = ("inference",), batch: int = 4, rounds: int = 7, tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Depths and widths of every named model; an empty list leaves that direction out."""
    lines = [(name, varies, values) for name in names for varies, values in (("depth", depths), ("width", widths))]
    with torch.device("meta"):  # refuses impossible sizes before anything is timed
        for name, varies, values in lines:
            for value in values:
                MAKERS[varies](name, value)
    series = [measure_series(*line, mode, batch, rounds, tick) for line in lines if line[-1] for mode in modes]
    return _document(series, modes)


def run_rows(
    rows: Mapping[str, Sequence[tuple[str, float | None]]], *, modes: Sequence[str] = ("inference",), batch: int = 8,
    rounds: int = 7, tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Registered models with the paper's accuracies over their blocks (Figures 6c and 6d); all take turns."""
    series = []
    for mode in modes:
        models = {name: create_model(name) for line in rows.values() for name, _ in line}
        seconds = _seconds(list(models.values()), mode, batch, rounds, tick)
        timed = dict(zip(models, seconds, strict=True))
        for label, line in rows.items():
            points = [
                _point(sum(plan.blocks for plan in models[name].plans), models[name], timed[name], batch, accuracy)
                for name, accuracy in line
            ]
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
    name: str, varies: str, values: Sequence[int], mode: str, batch: int, rounds: int, tick: Callable[[], None]
) -> Series:
    """Time all networks of a series in turns, count the bytes they save, and fit the exponents."""
    models = [MAKERS[varies](name, value) for value in values]
    seconds = _seconds(models, mode, batch, rounds, tick)
    points = [_point(at, model, times, batch) for at, model, times in zip(values, models, seconds, strict=True)]
    measured = {
        "time": [point.time.median for point in points],
        "memory": [float(point.saved_per_input) for point in points],
        "macs": [float(point.macs) for point in points],
    }
    laws = {what: PowerLaw.fit(values, figures) for what, figures in measured.items()} if len(set(values)) > 1 else {}
    return Series(name, varies, mode, batch, points, laws)


def _seconds(
    models: Sequence[Model], mode: str, batch: int, rounds: int, tick: Callable[[], None]
) -> list[list[float]]:
    torch.manual_seed(0)
    passes = [ours("", model, How(mode)).one_pass(random_batch(model, batch)) for model in models]
    return interleave(passes, rounds=rounds, tick=tick)


def _point(at: int, model: Model, seconds: list[float], batch: int, accuracy: float | None = None) -> Point:
    time = Quartiles.of(seconds)
    macs = model.cost().macs
    return Point(at, model.plan, macs, seconds, time, batch / time.median, saved_per_input(model), accuracy)

