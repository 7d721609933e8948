"""`stepsnet reproduce TABLE`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepsnet.cli.console import format_cost, print_json, print_table, print_text, progress
from stepsnet.report.table import Column, Table

if TYPE_CHECKING:
    from stepsnet.research.paper import Comparison, PaperTable

SUMMARY = "print a table of the paper beside our own counts"
DESCRIPTION = """\
Builds every row of a table of the paper and counts blocks, layers, parameters and multiply-accumulates ("FLOPs" in
the paper) beside the printed values. Blocks and layers must be equal. Parameters and MACs round to the printed value
(=), are within 2 % of it (≈: the paper's counter adds norms and activations), or are an exception that a note
explains (!). Accuracies and perplexities are the paper's; `stepsnet train` gives yours. Exits with 1 if a count
differs (≠).

  stepsnet reproduce table1
  stepsnet reproduce table2                          detectors: Mask R-CNN and Cascade Mask R-CNN; table3 is UPerNet
  stepsnet reproduce table5b --json
  stepsnet reproduce all"""

MARKS = {"same": "=", "within 2 %": "≈", "exception": "!", "differs": "≠"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("table", help="table1 … table5, table8 … table14, or all")
    add("--json", action="store_true", help="print objects with printed and counted values")


def run(args: argparse.Namespace) -> int:
    from stepsnet.research.paper import get_tables, reproduce

    tables = get_tables(args.table)
    results = []
    with progress("counting", sum(len(table.rows) for table in tables), "models") as bar:
        for table in tables:
            comparisons = []
            for comparison in reproduce(table):
                comparisons.append(comparison)
                bar.advance()
            results.append((table, comparisons))
    if args.json:
        documents = [
            {"table": table.name, "title": table.title, "note": table.note, "rows": [row.to_json() for row in rows]}
            for table, rows in results
        ]
        print_json(documents if len(tables) > 1 else documents[0])
    else:
        for table, comparisons in results:
            show(table, comparisons)
    return 0 if all(comparison.holds for _, comparisons in results for comparison in comparisons) else 1


def show(table: PaperTable, comparisons: list[Comparison]) -> None:
    """One table as text, with its notes."""
    print_text(f"Table {table.name.removeprefix('table')}. {table.title}" + (f". {table.note}" if table.note else ""))
    row = (Column("row", "name"), Column("model", "name", 3))
    if "plan" in comparisons[0].row.printed:  # a table of architectures
        counts = tuple(Column(title, priority=2) for title in ("blocks", "layers", "params", "MACs"))
        plans = (Column("plan as printed", "text", 1), Column("our plan", "text", 1))
        print_table(Table((*row, *plans, *counts), [plan_cells(comparison) for comparison in comparisons]))
    else:
        counts = (Column("blocks", priority=2), Column("layers", priority=2), Column("params"), Column("MACs"))
        plan, result = Column("plan", "text", 4), Column(table.result)
        print_table(Table((*row, plan, *counts, result), [count_cells(comparison) for comparison in comparisons]))
    for comparison in comparisons:
        if comparison.row.note:
            print_text(f"  {comparison.row.label} ({comparison.row.model}): {comparison.row.note}")
    print()


def plan_cells(comparison: Comparison) -> list[str]:
    row, verdict = comparison.row, comparison.verdicts["plan"]
    ours = "the same" if verdict == "same" else comparison.ours["plan"]
    return [row.label, row.model, row.printed["plan"], f"{MARKS[verdict]} {ours}", *format_cost(comparison.ours)]


def count_cells(comparison: Comparison) -> list[str]:
    """Our counts, each with its mark and the printed value: "4.729 G = 4.7 G"."""
    row, ours = comparison.row, comparison.ours
    params, macs = f"{ours['params'] / 1e6:.3f}", f"{ours['macs'] / 1e9:.3f}"
    cells = []
    counts = {"blocks": ours["blocks"], "layers": ours["layers"], "params": params, "macs": macs}
    for key, value in counts.items():
        unit = {"params": " M", "macs": " G"}.get(key, "")
        printed = f" {MARKS[comparison.verdicts[key]]} {row.printed[key]}{unit}" if key in row.printed else ""
        cells.append(f"{value}{unit}{printed}")
    return [row.label, row.model, ours["plan"], *cells, row.printed.get("result", "")]
