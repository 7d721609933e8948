"""`stepsnet runs [DIR]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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

    root = Path(args.dir)
    if not root.is_dir():
        raise UsageError(f"There is no folder {root}; a first run makes it: stepsnet train digits.")
    found = [_describe(config.parent) for config in sorted(root.rglob("config.json")) if "checkpoints" not in config.parts]
    if args.json:
        print_json(found)
    elif found:
        words = [{**facts, "plan": facts["plan"] or "", "metrics": in_words(_shown(facts["metrics"]))} for facts in found]
        cells = [[str(row[key]) for key in ("run", "recipe", "model", "plan", "state", "step", "metrics")] for row in words]
        print_table(("run", "recipe", "model", "plan", "state", "step", "validation"), cells, left=(0, 1, 2, 3, 4, 6))
    else:
        print(f"No runs in {root}.")
    return 0


def _describe(folder: Path) -> dict[str, Any]:
    from stepsnet.errors import UsageError
    from stepsnet.runs.folder import EVALUATIONS, METRICS, is_being_trained, is_finished, last_line, read_config

    facts: dict[str, Any] = {"run": str(folder), "recipe": "", "model": "", "plan": None, "state": "unreadable", "step": 0, "metrics": {}}
    try:
        config = read_config(folder)
    except UsageError:
        return facts
    state = "finished" if is_finished(folder) else "running" if is_being_trained(folder) else "stopped"
    metrics = last_line(folder / EVALUATIONS)
    metrics.pop("step", None)
    named = {"recipe": config.recipe or config.task, "model": config.model, "plan": config.plan}
    return facts | named | {"state": state, "step": last_line(folder / METRICS).get("step", 0), "metrics": metrics}


def _shown(metrics: dict[str, float]) -> dict[str, float]:
    """Few enough for a column."""
    chosen = [name for name in ("top1", "bits_per_byte", "loss", "ema_top1") if metrics.get(name) is not None]
    return {name: metrics[name] for name in chosen}
