"""`stepsnet runs [DIR]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepsnet.cli.console import format_metrics, print_json, print_table, print_text
from stepsnet.errors import UsageError
from stepsnet.report.table import Column, Table
from stepsnet.runs.folder import find_runs, summarize

SUMMARY = "list the runs in a folder with their results"
DESCRIPTION = """\
Lists the runs below a folder: recipe, model, plan, state, steps and the last evaluation.

  stepsnet runs
  stepsnet runs somewhere/else --json"""

SHOWN = ("top1", "mask_ap", "box_ap", "miou", "bits_per_byte", "loss", "ema_top1")
"""The metrics of the table, in this order; --json has all."""
COLUMNS = (
    Column("run", "name"), Column("recipe", "name", 5), Column("model", "name", 3), Column("plan", "text", 6),
    Column("state", "name", 2), Column("step", priority=4), Column("validation", "text", 1),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dir", nargs="?", default="runs", help="the folder that holds the runs (default: runs)")
    add("--json", action="store_true", help="print a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    root = Path(args.dir)
    if not root.is_dir():
        raise UsageError(f"There is no folder {root}; `stepsnet train digits` creates one.")
    found = [summarize(folder) for folder in find_runs(root)]
    if args.json:
        print_json(found)
    elif found:
        cells = []
        for facts in found:
            metrics = format_metrics({name: facts["metrics"].get(name) for name in SHOWN})
            words = facts | {"plan": facts["plan"] or "", "validation": metrics}
            cells.append([str(words[column.title]) for column in COLUMNS])
        print_table(Table(COLUMNS, cells))
    else:
        print_text(f"No runs in {root}.")
    return 0
