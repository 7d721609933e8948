"""`stepsnet reproduce TABLE`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepsnet.research.paper import Comparison, PaperTable

SUMMARY = "reprint a table of the paper beside our own counts"
DESCRIPTION = """\
Builds every row of a table of the paper and counts it: blocks, layers, parameters and multiply-accumulates ("FLOPs" in the paper),
each beside the printed figure. Blocks and layers must be equal; parameters and MACs round to the printed digit (=), lie within 2 % of
it (≈: the paper's counter adds a little for norms and activations), or are exceptions that the note explains (!).
Accuracies and perplexities are the paper's; `stepsnet train` is for yours.

  stepsnet reproduce table1
  stepsnet reproduce table2                          detectors: Mask R-CNN and Cascade Mask R-CNN; table3 is UPerNet
  stepsnet reproduce table5b --json
  stepsnet reproduce all"""

MARKS = {"same": "=", "within 2 %": "≈", "exception": "!", "differs": "≠"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="table1 … table5, table8 … table14, or all")
    parser.add_argument("--json", action="store_true", help="print objects with printed and own figures")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json, progress
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
    from stepsnet.cli.numbers import print_table

    print(f"Table {table.name.removeprefix('table')}. {table.title}" + (f". {table.note}" if table.note else ""))
    architectures = "plan" in comparisons[0].row.printed
    if architectures:
        columns: tuple[str, ...] = ("row", "model", "plan as printed", "", "our plan", "blocks", "layers", "params", "MACs")
        print_table(columns, map(plan_cells, comparisons), (0, 1, 2, 3, 4))
    else:
        columns = ("row", "model", "plan", "blocks", "", "layers", "", "params", "printed", "MACs", "printed", table.result)
        print_table(columns, map(count_cells, comparisons), (0, 1, 2))
    for comparison in comparisons:
        if comparison.row.note:
            print(f"  {comparison.row.label} ({comparison.row.model}): {comparison.row.note}")
    print()


def plan_cells(comparison: Comparison) -> list[str]:
    from stepsnet.cli.numbers import format_cost

    row = comparison.row
    same = comparison.verdicts["plan"] == "same"
    ours = "the same" if same else comparison.ours["plan"]
    return [row.label, row.model, row.printed["plan"], MARKS[comparison.verdicts["plan"]], ours, *format_cost(comparison.ours)]


def count_cells(comparison: Comparison) -> list[str]:
    row, ours, verdicts = comparison.row, comparison.ours, comparison.verdicts
    cells = [row.label, row.model, ours["plan"]]
    for column in ("blocks", "layers"):
        cells += [str(ours[column]), f"{MARKS[verdicts[column]]} {row.printed[column]}" if column in row.printed else ""]
    for column, unit, letter in (("params", 1e6, "M"), ("macs", 1e9, "G")):
        printed = f"{MARKS[verdicts[column]]} {row.printed[column]} {letter}" if column in row.printed else ""
        cells += [f"{ours[column] / unit:.3f} {letter}", printed]
    return [*cells, row.printed.get("result", "")]
