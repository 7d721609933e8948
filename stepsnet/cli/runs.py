"""`stepsnet runs [DIR]`."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "list the runs in a folder with their results"
DESCRIPTION = """\
Lists the runs below a folder: what they train, how far they are, and what their last evaluation found.

  stepsnet runs
  stepsnet runs somewhere/else --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", nargs="?", default="runs", help="the folder that holds the runs (default: runs)")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json
    from stepsnet.cli.numbers import print_table
    from stepsnet.cli.watching import in_words
    from stepsnet.errors import UsageError
    from stepsnet.runs.folder import find_runs, summarize

    root = Path(args.dir)
    if not root.is_dir():
        raise UsageError(f"There is no folder {root}; a first run makes it: stepsnet train digits.")
    found = [summarize(folder) for folder in find_runs(root)]
    if args.json:
        print_json(found)
    elif found:
        words = [{**facts, "plan": facts["plan"] or "", "metrics": in_words(_shown(facts["metrics"]))} for facts in found]
        cells = [[str(row[key]) for key in ("run", "recipe", "model", "plan", "state", "step", "metrics")] for row in words]
        print_table(("run", "recipe", "model", "plan", "state", "step", "validation"), cells, left=(0, 1, 2, 3, 4, 6))
    else:
        print(f"No runs in {root}.")
    return 0


def _shown(metrics: dict[str, float]) -> dict[str, float]:
    """Few enough for a column."""
    chosen = [name for name in ("top1", "bits_per_byte", "loss", "ema_top1") if metrics.get(name) is not None]
    return {name: metrics[name] for name in chosen}
