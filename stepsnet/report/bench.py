"""A benchmark's tables, charts and page, from its JSON object alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from stepsnet.files import write_json
from stepsnet.report.chart import BarChart, Chart, Line, LineChart
from stepsnet.report.html import collapsed, command, figures, page, paragraph, section, write
from stepsnet.report.svg import RESIDUAL, SERIES, STEPS
from stepsnet.report.table import Column, Table
from stepsnet.units import counted, megabytes, milliseconds, percent, si, significant

Document: TypeAlias = Mapping[str, Any]
Value: TypeAlias = Callable[[Mapping[str, Any]], float]

SAVED = "Saved for the backward pass"
TITLES = {"speed": "Speed", "memory": "Memory", "depth": "Cost over depth and width"}
ABOUT = {
    "speed": (
        "The contenders of a case take turns in one process; each round starts with another one. A ratio is the time "
        "of the reference over the time of the contender in the same round: above 1 the contender is faster. GFLOP/s "
        "count two operations a multiply-accumulate, and three times as many in a training step."
    ),
    "memory": (
        "A peak is measured in a process of its own, which creates the model and runs one pass. The bytes saved for "
        "the backward pass are those that autograd saves: each storage once, without parameters, buffers and inputs."
    ),
    "depth": (
        "Exponents are least-squares fits to logarithms, with their standard errors. Attention costs 2N²C and the "
        "linear layers 12NC² (Eq. 3), so MACs grow slower than the square of the width. At small widths time grows "
        "slower still: norms, activations and call overhead are linear in the width or constant."
    ),
}


def bench_report(document: Document, folder: Path) -> Path:
    """Write result.json, the charts as .svg and report.html into a folder, which is created; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "result.json", document)
    charts = bench_charts(document)
    for name, chart in charts.items():
        chart.save(folder / f"{name}.svg")
    found = findings(document)
    details = {key: document[key] for key in ("settings", "machine") if key in document}
    sections = [
        section("Findings", *map(paragraph, found[1:])),
        section("Charts", figures(*charts.values())),
        section("Tables", *(table.html() for table in tables_of(document))),
        section("What is timed", *map(paragraph, timed_lines(document)), paragraph(ABOUT[document["benchmark"]])),
        section("Command", command(document.get("command", ""))),
        section("Details", collapsed("Settings and machine", json.dumps(details, indent=2, ensure_ascii=False))),
    ]
    title, facts, verdict = TITLES[document["benchmark"]], _facts(document), found[0] if found else ""
    return write(folder / "report.html", page(title, machine_line(document), sections, verdict=verdict, facts=facts))


def _facts(document: Document) -> list[tuple[str, str]]:
    """The key numbers: ratios of speed, or exponents of time."""
    if document["benchmark"] == "speed":
        ratios = [one["ratio"]["median"] for case in document["cases"] for one in case["contenders"][1:]]
        if not ratios:
            return []
        if len(ratios) == 1:
            return [("speed ratio", f"{times(ratios[0])} ×")]
        found = {"median speed ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        return [(name, f"{times(ratio)} ×") for name, ratio in found.items()]
    if document["benchmark"] == "depth":
        fitted = [series for series in document["series"] if series["laws"]]
        names = [f"{series['label']}: time over {series['varies']}, {series['mode']}" for series in fitted]
        return [(name, f"exponent {series['laws']['time']['exponent']:.2f}")
                for name, series in zip(names, fitted, strict=True)]  # fmt: skip
    saved = [row for row in document["rows"] if row["saved_per_input"] is not None]
    return [(f"{row['model']}: saved for backward, an input", megabytes(row["saved_per_input"])) for row in saved]


def tables_of(document: Document) -> list[Table]:
    """The tables of a benchmark's JSON object."""
    return TABLES[document["benchmark"]](document)


def machine_line(document: Document) -> str:
    """Machine, versions and date in one sentence."""
    machine = document["machine"]
    peak = ", ".join(f"{significant(flops)} in {dtype}" for dtype, flops in document.get("peak_gflops", {}).items())
    limit = f"; fastest matrix product in this run, GFLOP/s: {peak}" if peak else ""
    bf16 = ", ".join(machine["bf16_instructions"]) or "no instructions for bf16"
    return (
        f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {counted(machine['threads'], 'thread')}, "
        f"{machine['instructions']}, {bf16}, torch {machine['torch']}, {machine['date']}{limit}."
    )


def timed_lines(document: Document) -> list[str]:
    """What is timed, one sentence a mode."""
    return [f"{mode.capitalize()}: {what}." for mode, what in document.get("timed", {}).items()]


def speed_tables(document: Document) -> list[Table]:
    cases = document["cases"]
    costs_differ = any(len({one["macs"] for one in case["contenders"]}) > 1 for case in cases)
    compared = any(one["difference"] is not None for case in cases for one in case["contenders"])
    columns = [Column("case", "text", 0), Column("contender", "name")]
    columns += [Column("speed ×", priority=0), Column("lower quartile", priority=3)]
    columns += [Column("per MAC ×", priority=2), Column("lower quartile per MAC", priority=5)] if costs_differ else []
    columns += [Column("median"), Column("quartiles", priority=4), Column("per second", priority=2)]
    columns += [Column("GFLOP/s", priority=3), Column("of peak", priority=4)]
    columns += [Column("max. difference", priority=3)] if compared else []
    rows = []
    for case in cases:
        for index, one in enumerate(case["contenders"]):
            row = [case_name(case) if index == 0 else "", one["label"]]
            ratios = [one["ratio"], *([one["ratio_per_mac"]] if costs_differ else [])]
            compares = [times(ratio[what]) for ratio in ratios for what in ("median", "lower")]
            row += ["reference", *[""] * (len(compares) - 1)] if index == 0 else compares
            middle, lower, upper = (milliseconds(one["time"][what]) for what in ("median", "lower", "upper"))
            row += [middle, f"{lower[:-3]} … {upper}"]
            row += [f"{one['throughput']:.4g}", significant(one["gflops"]), percent(one["share_of_peak"])]
            row += ["" if one["difference"] is None else f"{one['difference']:.0e}"] if compared else []
            rows.append(row)
    return [Table(columns, rows, "Speed")]


def case_name(case: Mapping[str, Any]) -> str:
    precision = f", {case['dtype']}" if case["dtype"] != "fp32" else ""
    name = f"{case['model']}, " if case["model"] else ""
    return f"{name}{case['mode']}, batch {case['batch']}{precision}"


def memory_tables(document: Document) -> list[Table]:
    rows = document["rows"]
    batches = rows[0]["batches"] if rows and rows[0]["peaks"] else []
    columns = [Column("model", "name"), Column("mode", "name")]
    columns += [Column("blocks", priority=3), Column("MACs", priority=3)]
    columns += [Column(f"peak at batch {batch}", priority=2) for batch in batches]
    columns += [Column(f"growth {batches[0]} → {batches[-1]}")] if batches else []
    columns += [Column("saved for backward, an input")]
    cells = []
    for row in rows:
        cell = [row["model"], row["mode"], str(row["blocks"]), si(row["macs"]), *map(megabytes, row["peaks"])]
        cell += [megabytes(row["growth"])] if row["growth"] is not None else []
        cells.append([*cell, "" if row["saved_per_input"] is None else megabytes(row["saved_per_input"])])
    return [Table(columns, cells, "Memory")]


def depth_tables(document: Document) -> list[Table]:
    """The exponents first, then the points they were fitted to."""
    laws, points = [], []
    for series in document["series"]:
        name = series["label"]
        if series["laws"]:
            found = [series["laws"][what] for what in ("time", "macs", "memory")]
            cells = [_with_error(law, " ± {:.2f}") for law in found]
            laws.append([name, series["varies"], series["mode"], *cells])
        for point in series["points"]:
            accuracy = "" if point["accuracy"] is None else f"{point['accuracy']:.1f}"
            row = [name, series["mode"], series["varies"], str(point["at"]), si(point["macs"])]
            row += [milliseconds(point["time"]["median"]), f"{point['throughput']:.4g}"]
            points.append([*row, megabytes(point["saved_per_input"]), accuracy])
    network, mode, varies = (Column(title, "name") for title in ("network", "mode", "varies"))
    columns = (
        network, mode, varies, Column("at", priority=0), Column("MACs", priority=2), Column("median", priority=0),
        Column("per second", priority=3), "saved for backward, an input", Column("top-1 % (paper)", priority=4),
    )  # fmt: skip
    exponents = Table((network, varies, mode, "time", "MACs", "saved for backward"), laws, "Exponents")
    return [*([exponents] if laws else []), Table(columns, points, "Points")]


def construction_tables(document: Document) -> list[Table]:
    columns = ("network", "blocks", "layers", "params", "make", "make on meta", "file", "write", "read")
    rows = []
    for row in document["rows"]:
        times_of = {what: milliseconds(row[what]["median"]) for what in ("make", "make_on_meta", "write", "read")}
        sizes = [str(row["blocks"]), str(row["layers"]), si(row["params"])]
        made = [times_of["make"], times_of["make_on_meta"], megabytes(row["bytes"])]
        rows.append([row["model"], *sizes, *made, times_of["write"], times_of["read"]])
    return [Table(columns, rows, "Construction")]


def printed_tables(document: Document) -> list[Table]:
    """Of a program whose result is its output."""
    return [Table((Column("output", "text"),), [[line] for line in document["lines"]], "Printed")]


TABLES: dict[str, Callable[[Document], list[Table]]] = {
    "speed": speed_tables, "memory": memory_tables, "depth": depth_tables, "construction": construction_tables,
    "printed": printed_tables,
}  # fmt: skip


def times(ratio: float) -> str:
    """1.25, 0.98, 0.0012."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def findings(document: Document) -> list[str]:
    """The ratios and exponents as sentences."""
    if document["benchmark"] == "speed":
        return [sentence for case in document["cases"] for sentence in _speed_sentences(case)]
    if document["benchmark"] == "depth":
        return [_law_sentence(series) for series in document["series"] if series["laws"]]
    return _memory_sentences(document["rows"])


def _speed_sentences(case: Mapping[str, Any]) -> list[str]:
    reference, *others = case["contenders"]
    sentences = []
    for one in others:
        per_mac = f"; {times(one['ratio_per_mac']['median'])} × per MAC" if one["macs"] != reference["macs"] else ""
        ratio = one["ratio"]
        sentences.append(f"{case_name(case)}: {one['label']} is {times(ratio['median'])} × {reference['label']} "
                         f"(quartiles {times(ratio['lower'])} … {times(ratio['upper'])}){per_mac}.")  # fmt: skip
    return sentences


def _with_error(law: Mapping[str, float], form: str) -> str:
    """An exponent and its error; a line through two points has none."""
    return f"{law['exponent']:.2f}" + (form.format(law["error"]) if law["error"] else "")


def _law_sentence(series: Mapping[str, Any]) -> str:
    grow = {what: f"^{_with_error(law, ' (± {:.2f})')}" for what, law in series["laws"].items()}
    x = series["varies"]
    others = f"MACs {x}{grow['macs']}, saved bytes {x}{grow['memory']}"
    return f"{series['label']}, {series['mode']}: time grows as {x}{grow['time']}, {others}."


def _memory_sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each further model against the first of its mode."""
    sentences = []
    for row in rows:
        first = next(other for other in rows if other["mode"] == row["mode"])
        if row is not first and row["saved_per_input"]:
            grown = all(each["growth"] is not None and each["growth"] > 0 for each in (row, first))  # else it is noise
            growth = f", and its total memory grows {row['growth'] / first['growth']:.2f} × as much" if grown else ""
            ratio = row["saved_per_input"] / first["saved_per_input"]
            sentences.append(f"{row['model']} saves {ratio:.2f} × the bytes of {first['model']} for backward{growth}.")
    return sentences


def bench_charts(document: Document) -> dict[str, Chart]:
    """The charts by the name of their file."""
    draw = {"speed": _speed_charts, "memory": _memory_charts, "depth": _depth_charts}
    return draw[document["benchmark"]](document)


def _speed_charts(document: Document) -> dict[str, Chart]:
    charts: dict[str, Chart] = {}
    ratios = [(case, one) for case in document["cases"] for one in case["contenders"][1:]]
    if ratios and document["settings"]["against"]:
        labels = [case_name(case) + f": {one['label']}" * (len(case["contenders"]) > 2) for case, one in ratios]
        references = {case["contenders"][0]["label"] for case, _ in ratios}
        reference = references.pop() if len(references) == 1 else "its reference"
        charts["ratio"] = BarChart(
            title=f"Speed relative to {reference}", note="Medians; whiskers are quartiles. Above 1: faster.",
            labels=labels, values=[one["ratio"]["median"] for _, one in ratios], reference=1.0,
            x_label=f"speed over that of {reference}",
            spans=[(one["ratio"]["lower"], one["ratio"]["upper"]) for _, one in ratios],
        )  # fmt: skip
    for case in document["cases"]:
        if all(len({one[what] for one in case["contenders"]}) > 2 for what in ("macs", "model")):
            charts |= _throughput(case, document.get("accuracy", {}))
    return charts


def _throughput(case: Mapping[str, Any], accuracy: Mapping[str, float]) -> dict[str, Chart]:
    """Figure 6a: cost and accuracy of models against their speed."""
    name = f"{case['mode']}_{case['batch']}_{case['dtype']}"
    note = f"{case['mode'].capitalize()}, batch {case['batch']}, {case['dtype']}"
    unit = f"{case['unit']} a second"
    contenders = case["contenders"]
    cost = _families(contenders, lambda one: one["macs"] / 1e9, lambda one: one["throughput"])
    charts: dict[str, Chart] = {f"macs_{name}": LineChart(
        title="Throughput against cost", note=note, lines=cost, x_label="MACs of one input, G", y_label=unit,
        log_x=True, log_y=True,
    )}  # fmt: skip
    known = [one for one in contenders if one["model"] in accuracy]
    if len(known) > 1:
        curves = _families(known, lambda one: one["throughput"], lambda one: accuracy[one["model"]])
        charts[f"accuracy_{name}"] = LineChart(
            title="Accuracy against throughput (Figure 6a)", note=note, lines=curves, x_label=unit,
            y_label="top-1 %, as printed in the paper", log_x=True,
        )  # fmt: skip
    return charts


def _families(contenders: Sequence[Mapping[str, Any]], x: Value, y: Value) -> list[Line]:
    """One line a family; residual networks are dashed, in the colour of the Steps networks of their family."""
    kinds: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for one in sorted(contenders, key=x):
        family = re.match("[a-z]*", one["model"].removeprefix("test_").removeprefix("steps_"))
        kinds.setdefault((family[0] if family else "", "steps" in one["model"]), []).append(one)
    colors = dict(zip(sorted({family for family, _ in kinds}), cycle(SERIES), strict=False))
    return [
        Line(f"{'steps ' * steps}{family}", [x(one) for one in ones], [y(one) for one in ones], colors[family],
             dashed=not steps, names=[one["model"] for one in ones])
        for (family, steps), ones in sorted(kinds.items())
    ]  # fmt: skip


def _memory_charts(document: Document) -> dict[str, Chart]:
    charts: dict[str, Chart] = {}
    grown = [row for row in document["rows"] if row["growth"] is not None]
    if grown:
        first, last = grown[0]["batches"][0], grown[0]["batches"][-1]
        charts["growth"] = BarChart(
            title="Growth of total memory (Figure 6d)",
            note=f"Batch {first} to {last}; peaks of resident memory, one process each.",
            labels=[f"{row['model']}, {row['mode']}" for row in grown], values=[row["growth"] / 1e6 for row in grown],
            colors=[_color(row["model"]) for row in grown], x_label="MB",
        )  # fmt: skip
    saved = [row for row in document["rows"] if row["saved_per_input"] is not None]
    if saved:
        charts["saved"] = BarChart(
            title=SAVED, note="Counted: each storage that autograd saves, once.", x_label="MB an input",
            labels=[row["model"] for row in saved], values=[row["saved_per_input"] / 1e6 for row in saved],
            colors=[_color(row["model"]) for row in saved],
        )  # fmt: skip
    return charts


def _color(model: str) -> str:
    return STEPS if "steps" in model.lower() else RESIDUAL


def _depth_charts(document: Document) -> dict[str, Chart]:
    charts: dict[str, Chart] = {}
    kinds = dict.fromkeys((series["varies"], series["mode"], series["batch"]) for series in document["series"])
    for varies, mode, batch in kinds:
        shown = [series for series in document["series"] if (series["varies"], series["mode"]) == (varies, mode)]
        note, x_label = f"{mode.capitalize()}, batch {batch}", "width" if varies == "width" else "blocks"
        memory = _lines(shown, lambda point: point["saved_per_input"] / 1e6, "memory")
        if shown[0]["laws"]:
            time = _lines(shown, lambda point: 1000 * point["time"]["median"], "time")
            title = f"Time against {varies}"
            charts[f"time_{varies}_{mode}"] = _power_chart(title, note, time, x_label, "ms a batch, median")
            charts[f"memory_{varies}"] = _power_chart(f"Memory against {varies}", SAVED, memory, x_label, "MB an input")
        else:
            rate = _lines(shown, lambda point: point["throughput"])
            charts[f"throughput_{mode}"] = LineChart(
                title="Throughput against depth (Figure 6c)", note=note, lines=rate, x_label=x_label,
                y_label="images a second",
            )  # fmt: skip
            charts["memory"] = LineChart(
                title="Memory against depth (Figure 6d)", note=SAVED, lines=memory, x_label=x_label,
                y_label="MB an input",
            )  # fmt: skip
    return charts


def _power_chart(title: str, note: str, lines: Sequence[Line], x_label: str, y_label: str) -> Chart:
    """Two logarithmic axes, on which a power law is straight; the ticks of x are at what was measured."""
    measured = sorted({x for line in lines for x in line.x})
    return LineChart(
        title=title, note=note, lines=lines, x_label=x_label, y_label=y_label, log_x=True, log_y=True, x_ticks=measured
    )


def _lines(shown: Sequence[Mapping[str, Any]], value: Value, law: str = "") -> list[Line]:
    """One line a series, its exponent in the label."""
    named = {"Swin": RESIDUAL, "DeiT": RESIDUAL, "Steps-Swin": STEPS, "Steps-DeiT": STEPS}
    lines = []
    for index, series in enumerate(shown):
        exponent = f", exponent {series['laws'][law]['exponent']:.2f}" if law in series["laws"] else ""
        points, color = series["points"], named.get(series["label"], SERIES[index % len(SERIES)])
        x, y = [point["at"] for point in points], [value(point) for point in points]
        lines.append(Line(f"{series['label']}{exponent}", x, y, color))
    return lines
