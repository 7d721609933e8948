"""Benchmarks as tables of words, from their JSON alone: the same rows on the terminal, in pages and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WordTable:
    """`left` are the columns of words; the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    left: tuple[int, ...] = (0,)

    def markdown(self) -> str:
        rule = ["---" if index in self.left else "---:" for index in range(len(self.columns))]
        return "\n".join("| " + " | ".join(row) + " |" for row in (self.columns, rule, *self.rows))


def tables_of(document: Mapping[str, Any]) -> list[WordTable]:
    """The tables of a benchmark's JSON object."""
    return TABLES[document["benchmark"]](document)


def machine_line(document: Mapping[str, Any]) -> str:
    """On what and when: one sentence to stand beside every figure."""
    machine = document["machine"]
    peaks = document.get("peak_gflops", {})
    peak = ", ".join(f"{flops:.0f} in {dtype}" for dtype, flops in peaks.items())
    limit = f"; its fastest matrix product in this run, GFLOP/s: {peak}" if peak else ""
    bf16 = ", ".join(machine["bf16_instructions"]) or "no instructions for bf16"
    return (
        f"{machine['cpu']}, {counted(machine['cores'], 'core')}, {counted(machine['threads'], 'thread')}, "
        f"{machine['instructions']}, {bf16}, torch {machine['torch']}, {machine['date']}{limit}."
    )


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def timed_lines(document: Mapping[str, Any]) -> list[str]:
    """What exactly is timed, a sentence a mode."""
    return [f"{mode.capitalize()}: {what}." for mode, what in document.get("timed", {}).items()]


def speed_tables(document: Mapping[str, Any]) -> list[WordTable]:
    cases = document["cases"]
    costs_differ = any(len({one["macs"] for one in case["contenders"]}) > 1 for case in cases)
    compared = any(one["difference"] is not None for case in cases for one in case["contenders"])
    columns = ["case", "contender", "speed ×", "lower quartile"]
    columns += ["per MAC ×", "lower quartile"] if costs_differ else []
    columns += ["median", "quartiles", "per second", "GFLOP/s", "of peak"]
    columns += ["max. difference"] if compared else []
    rows = []
    for case in cases:
        for index, one in enumerate(case["contenders"]):
            row = [case_name(case) if index == 0 else "", one["label"]]
            row += ["reference", ""] if index == 0 else [times(one["ratio"]["median"]), times(one["ratio"]["lower"])]
            if costs_differ:
                row += ["", ""] if index == 0 else [times(one["ratio_per_mac"]["median"]), times(one["ratio_per_mac"]["lower"])]
            spread = one["time"]
            row += [milliseconds(spread["median"]), f"{milliseconds(spread['lower'])[:-3]} … {milliseconds(spread['upper'])}"]
            row += [f"{one['throughput']:.4g}", f"{one['gflops']:.0f}", f"{one['share_of_peak']:.0%}"]
            row += ["" if one["difference"] is None else f"{one['difference']:.0e}"] if compared else []
            rows.append(row)
    return [WordTable("Speed", tuple(columns), rows, (0, 1))]


def case_name(case: Mapping[str, Any]) -> str:
    precision = f", {case['dtype']}" if case["dtype"] != "fp32" else ""
    name = f"{case['model']}, " if case["model"] else ""
    return f"{name}{case['mode']}, batch {case['batch']}{precision}"


def memory_tables(document: Mapping[str, Any]) -> list[WordTable]:
    rows = document["rows"]
    first = rows[0]["batches"] if rows else []
    columns = ["model", "mode", "blocks", "MACs", *(f"peak at batch {batch}" for batch in first if rows[0]["peaks"])]
    columns += [f"growth {first[0]} → {first[-1]}"] if rows and rows[0]["peaks"] else []
    columns += ["saved for backward, an input"]
    cells = []
    for row in rows:
        cell = [row["model"], row["mode"], str(row["blocks"]), f"{row['macs'] / 1e9:.2f} G", *map(mega, row["peaks"])]
        cell += [mega(row["growth"])] if row["growth"] is not None else []
        cells.append([*cell, "" if row["saved_per_input"] is None else mega(row["saved_per_input"])])
    return [WordTable("Memory", tuple(columns), cells, (0, 1))]


def depth_tables(document: Mapping[str, Any]) -> list[WordTable]:
    """The exponents first, then the points they were fitted to."""
    laws = []
    points = []
    for series in document["series"]:
        name = series["label"]
        if series["laws"]:
            found = [f"{series['laws'][what]['exponent']:.2f} ± {series['laws'][what]['error']:.2f}" for what in ("time", "macs", "memory")]
            laws.append([name, series["varies"], series["mode"], *found])
        for point in series["points"]:
            accuracy = "" if point["accuracy"] is None else f"{point['accuracy']:.1f}"
            points.append(
                [name, series["mode"], series["varies"], str(point["at"]), f"{point['macs'] / 1e9:.2f} G",
                 milliseconds(point["time"]["median"]), f"{point['throughput']:.4g}", mega(point["saved_per_input"]), accuracy]
            )  # fmt: skip
    shown = []
    if laws:
        shown.append(WordTable("Exponents", ("network", "varies", "mode", "time", "MACs", "saved for backward"), laws, (0, 1, 2)))
    columns = ("network", "mode", "varies", "at", "MACs", "median", "per second", "saved for backward, an input", "top-1 % (paper)")
    return [*shown, WordTable("Points", columns, points, (0, 1, 2))]


def construction_tables(document: Mapping[str, Any]) -> list[WordTable]:
    columns = ("network", "blocks", "layers", "params", "make", "make on meta", "file", "write", "read")
    rows = []
    for row in document["rows"]:
        make, on_meta, write, read = (milliseconds(row[what]["median"]) for what in ("make", "make_on_meta", "write", "read"))
        size = f"{row['params'] / 1e6:.1f} M"
        rows.append([row["model"], str(row["blocks"]), str(row["layers"]), size, make, on_meta, mega(row["bytes"]), write, read])
    return [WordTable("Construction", columns, rows)]


def printed_tables(document: Mapping[str, Any]) -> list[WordTable]:
    """Of a program whose result is what it prints."""
    return [WordTable("Printed", ("what it printed",), [[line] for line in document["lines"]])]


TABLES: dict[str, Callable[[Mapping[str, Any]], list[WordTable]]] = {
    "speed": speed_tables, "memory": memory_tables, "depth": depth_tables, "construction": construction_tables,
    "printed": printed_tables,
}  # fmt: skip


def times(ratio: float) -> str:
    return f"{ratio:.2f}"


def milliseconds(seconds: float) -> str:
    digits = 0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2
    return f"{1000 * seconds:.{digits}f} ms"


def mega(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"


def findings(document: Mapping[str, Any]) -> list[str]:
    """Sentences to read first: every ratio in words."""
    if document["benchmark"] == "speed":
        return [sentence for case in document["cases"] for sentence in _speed_sentences(case)]
    if document["benchmark"] == "depth":
        return [_law_sentence(series) for series in document["series"] if series["laws"]]
    return _memory_sentences(document["rows"])


def _speed_sentences(case: Mapping[str, Any]) -> list[str]:
    reference, *others = case["contenders"]
    said = []
    for one in others:
        per_mac = f"; {times(one['ratio_per_mac']['median'])} × per MAC" if one["macs"] != reference["macs"] else ""
        ratio = one["ratio"]
        said.append(f"{case_name(case)}: {one['label']} is {times(ratio['median'])} × {reference['label']} "
                    f"(quartiles {times(ratio['lower'])} … {times(ratio['upper'])}){per_mac}.")  # fmt: skip
    return said


def _law_sentence(series: Mapping[str, Any]) -> str:
    grow = {what: f"^{law['exponent']:.2f} (± {law['error']:.2f})" for what, law in series["laws"].items()}
    x = series["varies"]
    return f"{series['label']}, {series['mode']}: time grows as {x}{grow['time']}, MACs {x}{grow['macs']}, saved bytes {x}{grow['memory']}."


def _memory_sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each further model beside the first of its mode."""
    said = []
    for row in rows:
        first = next(other for other in rows if other["mode"] == row["mode"])
        if row is not first and row["saved_per_input"]:
            grown = row["growth"] is not None and first["growth"]
            growth = f", and its total memory grows {row['growth'] / first['growth']:.2f} × as much" if grown else ""
            saves = f"{row['saved_per_input'] / first['saved_per_input']:.2f} × the bytes of {first['model']} for backward"
            said.append(f"{row['model']} saves {saves}{growth}.")
    return said
