"""A benchmark's page and pictures, from its JSON alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stepsnet.report.bench_tables import case_name, findings, machine_line, tables_of, timed_lines
from stepsnet.report.figures import Line, bar_chart, figure_svg, line_chart, save_figure
from stepsnet.report.html import figures, page, paragraph, preformatted, section, table, write
from stepsnet.report.palette import RESIDUAL, SERIES, STEPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value: TypeAlias = Callable[[Mapping[str, Any]], float]

FEW_BARS = 4  # more have their names slanted
SAVED = "Saved for the backward pass"
TITLES = {"speed": "Speed", "memory": "Memory", "depth": "How cost grows"}


def bench_report(document: Mapping[str, Any], folder: Path) -> Path:
    """Write result.json, the pictures and report.html into a folder, which is made if need be; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "result.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    drawn = bench_figures(document)
    for name, (_, figure) in drawn.items():
        save_figure(figure, folder / f"{name}.png")
    sections = [
        section("What came out", *map(paragraph, findings(document))),
        section("Figures", figures(*((caption, figure_svg(figure)) for caption, figure in drawn.values()))),
        *(section(each.title, table(each.columns, each.rows, left=each.left)) for each in tables_of(document)),
        section("What is timed", *map(paragraph, timed_lines(document)), paragraph(ABOUT[document["benchmark"]])),
        section("Command", preformatted(document["command"])) if "command" in document else "",
    ]
    return write(folder / "report.html", page(TITLES[document["benchmark"]], machine_line(document), sections))


ABOUT = {
    "speed": "The contenders of a case take turns in one process, each round beginning with another. A ratio is the reference's time over "
    "the contender's in the same round; above 1 the contender is faster. GFLOP/s count two for each of our multiply-accumulates, "
    "three times as many in a training step.",
    "memory": "A peak is that of a process of its own which makes the model and runs one pass. Bytes saved for backward are counted by "
    "watching what autograd saves: every storage once, without parameters, buffers and inputs.",
    "depth": "Exponents are fitted by least squares to logarithms, with their standard error. Attention costs 2N²C beside the 12NC² of the "
    "linear layers (Eq. 3), so MACs grow a little slower than the square of the width, and at small widths time grows slower still: "
    "there it goes to norms, activations and calls, which are linear in the width or constant.",
}


def bench_figures(document: Mapping[str, Any]) -> dict[str, tuple[str, Figure]]:
    """Name of the file: (caption, picture)."""
    draw = {"speed": _speed_figures, "memory": _memory_figures, "depth": _depth_figures}
    return draw[document["benchmark"]](document)


def _speed_figures(document: Mapping[str, Any]) -> dict[str, tuple[str, Figure]]:
    drawn = {}
    ratios = [(case, one) for case in document["cases"] for one in case["contenders"][1:]]
    if ratios and document["settings"]["against"]:
        labels = [f"{case_name(case)}: {one['label']}" if len(case["contenders"]) > 2 else case_name(case) for case, one in ratios]
        spreads = [(one["ratio"]["upper"] - one["ratio"]["lower"]) / 2 for _, one in ratios]
        references = {case["contenders"][0]["label"] for case, _ in ratios}
        title = f"Speed against {references.pop() if len(references) == 1 else 'its reference'}"
        chart = bar_chart(
            labels, [one["ratio"]["median"] for _, one in ratios], errors=spreads, y_label="times as fast",
            title=title, note="medians; whiskers: half the distance of the quartiles",
        )  # fmt: skip
        if len(labels) > FEW_BARS:
            chart.axes[0].set_xticks(range(len(labels)), labels, rotation=40, ha="right")
        drawn["ratio"] = ("Speed over the reference's", chart)
    for case in document["cases"]:
        if len({one["macs"] for one in case["contenders"]}) > 2 and len({one["model"] for one in case["contenders"]}) > 2:
            drawn |= _throughput(case, document.get("accuracy", {}))
    return drawn


def _throughput(case: Mapping[str, Any], accuracy: Mapping[str, float]) -> dict[str, tuple[str, Figure]]:
    """Figure 6a: what a model costs and what it brings, against its speed."""
    name = f"{case['mode']}_{case['batch']}_{case['dtype']}"
    title = f"{case['mode'].capitalize()}, batch {case['batch']}, {case['dtype']}"
    unit = f"{case['unit']} a second"
    contenders = case["contenders"]
    cost = _families(contenders, lambda one: one["macs"] / 1e9, lambda one: one["throughput"])
    drawn = {f"macs_{name}": ("Throughput against cost", _logarithmic(
        line_chart(cost, title=title, x_label="MACs of one input, G", y_label=unit, log_x=True, log_y=True)))}
    known = [one for one in contenders if one["model"] in accuracy]
    if len(known) > 1:
        curves = _families(known, lambda one: one["throughput"], lambda one: accuracy[one["model"]])
        drawn[f"accuracy_{name}"] = ("Accuracy against throughput (Figure 6a)", _logarithmic(
            line_chart(curves, title=title, x_label=unit, y_label="top-1 %, as the paper prints it", log_x=True)))
    return drawn


def _families(contenders: Sequence[Mapping[str, Any]], x: Value, y: Value) -> list[Line]:
    """One line a family, its residual networks dashed in the same colour as its Steps networks."""
    kinds: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for one in sorted(contenders, key=x):
        family = re.match("[a-z]*", one["model"].removeprefix("test_").removeprefix("steps_"))
        kinds.setdefault((family[0] if family else "", "steps" in one["model"]), []).append(one)
    colors = dict(zip(dict.fromkeys(family for family, _ in kinds), cycle(SERIES), strict=False))
    return [
        Line(f"{'steps ' * steps}{family}", [x(one) for one in ones], [y(one) for one in ones], colors[family], dashed=not steps)
        for (family, steps), ones in sorted(kinds.items())
    ]


def _memory_figures(document: Mapping[str, Any]) -> dict[str, tuple[str, Figure]]:
    drawn = {}
    grown = [row for row in document["rows"] if row["growth"] is not None]
    if grown:
        first, last = grown[0]["batches"][0], grown[0]["batches"][-1]
        drawn["growth"] = ("Growth of total memory (Figure 6d)", bar_chart(
            [_row_name(row) for row in grown], [row["growth"] / 1e6 for row in grown], colors=[_color(row["model"]) for row in grown],
            title=f"Growth of total memory, batch {first} to {last}", y_label="MB", note="peaks of resident memory, one process each",
        ))
    saved = [row for row in document["rows"] if row["saved_per_input"] is not None]
    if saved:
        drawn["saved"] = ("Saved for the backward pass", bar_chart(
            [row["model"] for row in saved], [row["saved_per_input"] / 1e6 for row in saved], title=SAVED,
            colors=[_color(row["model"]) for row in saved], y_label="MB an input", note="counted: every storage that autograd saves, once",
        ))
    return drawn


def _row_name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['mode']}"


def _color(model: str) -> str:
    return STEPS if "steps" in model.lower() else RESIDUAL


def _depth_figures(document: Mapping[str, Any]) -> dict[str, tuple[str, Figure]]:
    drawn = {}
    kinds = dict.fromkeys((series["varies"], series["mode"], series["batch"]) for series in document["series"])
    for varies, mode, batch in kinds:
        together = [series for series in document["series"] if (series["varies"], series["mode"]) == (varies, mode)]
        title, x_label = f"{mode.capitalize()}, batch {batch}", "width" if varies == "width" else "blocks"
        time = [_line(series, lambda point: 1000 * point["time"]["median"], "time", number) for number, series in enumerate(together)]
        rate = [_line(series, lambda point: point["throughput"], "", number) for number, series in enumerate(together)]
        memory = [_line(series, lambda point: point["saved_per_input"] / 1e6, "memory", number) for number, series in enumerate(together)]
        if together[0]["laws"]:
            drawn[f"time_{varies}_{mode}"] = (f"Time against {varies}", _power_chart(time, title, x_label, "ms a batch, median"))
            drawn[f"memory_{varies}"] = (f"Memory against {varies}", _power_chart(memory, SAVED, x_label, "MB an input"))
        else:
            drawn[f"throughput_{mode}"] = ("Throughput against depth (Figure 6c)", line_chart(
                rate, title=title, x_label=x_label, y_label="images a second"))
            drawn["memory"] = ("Memory against depth (Figure 6d)", line_chart(memory, title=SAVED, x_label=x_label, y_label="MB an input"))
    return drawn


def _power_chart(lines: Sequence[Line], title: str, x_label: str, y_label: str) -> Figure:
    """Two logarithmic axes, on which a power law is straight; the ticks of x are where something was measured."""
    figure = _logarithmic(line_chart(lines, title=title, x_label=x_label, y_label=y_label, log_x=True, log_y=True))
    measured = sorted({int(x) for line in lines for x in line.x})
    figure.axes[0].set_xticks(measured, [str(x) for x in measured])
    return figure


def _logarithmic(figure: Figure) -> Figure:
    """Ticks at 1, 2, 5, 10 … on logarithmic axes: most of ours span less than two powers of ten."""
    (axes,) = figure.axes
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            axis.set_ticks([tick for power in powers for tick in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if low <= tick <= high])
    axes.minorticks_off()
    return figure


def _line(series: Mapping[str, Any], value: Value, law: str, number: int) -> Line:
    exponent = f", exponent {series['laws'][law]['exponent']:.2f}" if law in series["laws"] else ""
    points = series["points"]
    named = {"Swin": RESIDUAL, "DeiT": RESIDUAL, "Steps-Swin": STEPS, "Steps-DeiT": STEPS}
    color = named.get(series["label"], SERIES[number % len(SERIES)])
    return Line(f"{series['label']}{exponent}", [point["at"] for point in points], [value(point) for point in points], color)
