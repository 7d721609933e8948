"""Slow and fast path (Table 6): channels of the input set to zero in trained Steps models, no retraining."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from stepsnet.report.chart import Line, LineChart
from stepsnet.report.table import Table
from stepsnet.research.studies.charts import Charts, seeds_in_words
from stepsnet.research.studies.damaged import SIZES
from stepsnet.research.studies.results import Measured, Results, spread
from stepsnet.research.studies.rules import RULE, Outcome, paired
from stepsnet.research.studies.study import Study


def slow_less_fast(cell: Measured) -> float:
    """How much more the loss grows where the most slow channels are masked than where as many fast ones are."""
    found = cell.probes["paths"]["loss"]
    return float(found["slow"][-1] - found["fast"][-1])


def decide(results: Results) -> list[Outcome]:
    return [
        paired(results, f"Masking slow channels hurts more than masking as many fast ones ({arm.setting.key})", arm.key, slow_less_fast)
        for arm in results.size.arms
    ]


def tables(results: Results) -> Iterator[Table]:
    for arm in results.size.arms:
        cells = [cell.probes["paths"] for cell in results.finished(arm)]
        for metric in cells[0] if cells else ():
            sizes = cells[0][metric]["sizes"]
            rows = [
                [f"{path} path", *(spread([cell[metric][path][at] for cell in cells]) for at in range(len(sizes)))]
                for path in ("slow", "fast")
            ]
            yield Table(["", *(f"n = {size}" for size in sizes)], rows, f"{arm.key}: {metric} with n channels of x set to zero")


def draw(results: Results) -> Charts:
    for arm in results.size.arms:
        cells = [cell.probes["paths"]["loss"] for cell in results.finished(arm)]
        if cells:
            lines = []
            for path, where in (("slow", "the first"), ("fast", "the last")):
                along = [mean(values) for values in zip(*(cell[path] for cell in cells), strict=True)]
                lines.append(Line(f"{path} path: {where} n", cells[0]["sizes"], along))
            note = f"{arm.setting.about}; {arm.label}; mean over {seeds_in_words([len(cells)])}; no retraining"
            title = f"Slow and fast path masked: {arm.setting.key}"
            yield f"{arm.setting.key}-paths", LineChart(
                lines=lines, title=title, x_label="channels of x set to zero", y_label="validation loss (nats)", note=note
            )


STUDY = Study(
    name="paths",
    title="Slow and fast path",
    question="Does a trained StepsNet rely on the channels that go through all steps more than on those that join late? (Table 6)",
    rule=f"{RULE} Here the difference is taken within each trained model, at the largest number of masked channels.",
    sizes=SIZES,
    decide=decide,
    draw=draw,
    tables=tables,
    probes=("paths",),
)
