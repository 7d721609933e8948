"""Throughput, side by side: every model against its rivals, or several models against the first of them, in the same minutes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepsnet.models import Model, VisionModel
from stepsnet.research.bench.contenders import Contender, How, make_contenders, ours
from stepsnet.research.bench.interleave import interleave
from stepsnet.research.bench.machine import describe_machine, matmul_peak
from stepsnet.research.bench.passes import TIMES_FORWARD, WHAT_IS_TIMED, random_batch
from stepsnet.research.bench.summary import Spread, speed_ratios

SEED = 0


@dataclass(frozen=True)
class SpeedSettings:
    """Every combination of batch, mode and precision is a case of its own."""

    against: tuple[str, ...] = ()
    batches: tuple[int, ...] = (8,)
    modes: tuple[str, ...] = ("inference",)
    dtypes: tuple[str, ...] = ("fp32",)
    rounds: int = 9
    warm_up: int = 1
    compile: bool = False
    fold: bool = False
    channels_last: bool = False
    alike: bool = False

    def hows(self) -> list[How]:
        return [How(mode, dtype, self.compile, self.fold, self.channels_last) for dtype, mode in product(self.dtypes, self.modes)]

    def count_passes(self, models: int) -> int:
        """How many passes there will be, for a progress bar."""
        contenders = models * (1 + len(self.against))
        return contenders * len(self.hows()) * len(self.batches) * (self.rounds + self.warm_up)


@dataclass(frozen=True)
class Measured:
    """One contender of one case. Ratios are speeds over the reference's, round by round; above 1 is faster than it."""

    label: str
    model: str
    blocks: int | None
    macs: int
    seconds: list[float]
    time: Spread
    ratio: Spread
    ratio_per_mac: Spread
    throughput: float
    gflops: float
    share_of_peak: float
    difference: float | None
    """The largest difference of its outputs from the reference's, where the weights are the same."""


@dataclass(frozen=True)
class Case:
    model: str | None
    """None where several models are compared with one another."""
    mode: str
    batch: int
    dtype: str
    unit: str
    contenders: list[Measured]
    """The first is the reference."""


def run_speed(
    models: Mapping[str, Model], settings: SpeedSettings, *, tick: Callable[[], None] = lambda: None,
    peak: Callable[[str], float] = matmul_peak,
) -> dict[str, Any]:
    """All cases, as one JSON object with the machine, the settings and the measured peak."""
    peaks = {dtype: peak(dtype) for dtype in ("fp32", "bf16")}
    cases = [
        measure_case(name, group, how, batch, settings, peaks, tick)
        for name, how, group in _groups(models, settings)
        for batch in settings.batches
    ]
    return {
        "benchmark": "speed",
        "machine": describe_machine(),
        "settings": asdict(settings),
        "timed": {mode: WHAT_IS_TIMED[mode] for mode in settings.modes},
        "peak_gflops": {dtype: flops / 1e9 for dtype, flops in peaks.items()},
        "cases": [asdict(case) for case in cases],
    }


def _groups(models: Mapping[str, Model], settings: SpeedSettings) -> Iterator[tuple[str | None, How, list[Contender]]]:
    """The contenders of each group, made when their turn comes and forgotten after it."""
    if not settings.against:
        for how in settings.hows():
            yield None, how, [replace(ours(name, model, how), same_weights=False) for name, model in models.items()]
        return
    for (name, model), how in product(models.items(), settings.hows()):
        with tempfile.TemporaryDirectory() as scratch:
            yield name, how, make_contenders(model, settings.against, how, alike=settings.alike, scratch=Path(scratch))


def measure_case(
    name: str | None, group: Sequence[Contender], how: How, batch: int, settings: SpeedSettings, peaks: Mapping[str, float],
    tick: Callable[[], None],
) -> Case:
    """Time one group on one batch."""
    torch.manual_seed(SEED)
    inputs = [random_batch(contender.model, batch) for contender in group]
    alike = [inputs[0] if contender.same_weights else x for contender, x in zip(group, inputs, strict=True)]
    differences = _differences(group, inputs[0]) if how.mode == "inference" else [None] * len(group)
    passes = [contender.one_pass(x) for contender, x in zip(group, alike, strict=True)]
    seconds = interleave(passes, rounds=settings.rounds, warm_up=settings.warm_up, tick=tick)
    macs = [contender.model.closed_form().macs for contender in group]
    measured = []
    for index, contender in enumerate(group):
        time = Spread.of(seconds[index])
        ratios = speed_ratios(seconds[0], seconds[index])
        flops = 2 * macs[index] * batch * TIMES_FORWARD[how.mode] / time.median
        measured.append(
            Measured(
                label=contender.label,
                model=contender.model.default_cfg.get("architecture", type(contender.model).__name__),
                blocks=contender.model.closed_form().blocks,
                macs=macs[index],
                seconds=seconds[index],
                time=time,
                ratio=Spread.of(ratios),
                ratio_per_mac=Spread.of([ratio * macs[index] / macs[0] for ratio in ratios]),
                throughput=batch / time.median,
                gflops=flops / 1e9,
                share_of_peak=flops / peaks[contender.precision],
                difference=differences[index],
            )
        )
    unit = "images" if isinstance(group[0].model, VisionModel) else "sequences"
    return Case(name, how.mode, batch, how.dtype, unit, measured)


def _differences(group: Sequence[Contender], x: Tensor) -> list[float | None]:
    """The largest difference from the reference's outputs, where the weights are the same."""
    reference, *others = group
    comparable = [reference.same_weights and other.same_weights for other in others]
    if not any(comparable):
        return [None] * len(group)
    expected = reference.answer(x)
    found = [float((other.answer(x) - expected).abs().max()) if same else None for other, same in zip(others, comparable, strict=True)]
    return [None, *found]
