"""`stepsnet demo`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsnet.research.studies.demo import Network

SUMMARY = "see the claim with your own eyes: deep networks of equal cost side by side, nothing to download"
DESCRIPTION = """\
Trains three networks of equal depth, parameters and multiply-accumulates on scikit-learn's digits: a plain residual
network, StepsNet (Eq. 5) and StepsNet with matched joins. Prints a table and writes report.html with loss curves and the
shortcut ratio over depth. A few minutes on 2 cores; how it was chosen and confirmed is in docs/demo.md.

  stepsnet demo
  stepsnet demo --seed 7 --out runs/my-demo
  stepsnet demo --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="initial weights and order of the data (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one object instead of the table")
    parser.add_argument("--out", metavar="DIR", help="folder for the runs and the report (default: the next free runs/demo-<number>)")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json
    from stepsnet.cli.numbers import print_table
    from stepsnet.errors import RunFailed, UsageError
    from stepsnet.research.studies.demo import run_demo
    from stepsnet.research.studies.demo_report import COLUMNS, REMARKS, cells, findings, write_report

    if args.seed < 0:
        raise UsageError(f"--seed is {args.seed}, but cannot be negative.")
    out = _new_folder(args.out)
    try:
        with _Bars() as bars:
            demo = run_demo(args.seed, out, bars.step)
    except RunFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    report = write_report(demo, out)
    if args.json:
        print_json({**asdict(demo), "ranking": demo.ranking(), "findings": findings(demo), "report": str(report)})
        return 0
    print_table(COLUMNS, [[outcome.label, *cells(outcome)] for outcome in demo.networks])
    print("\n".join(findings(demo)) + "\n")
    print("\n".join(REMARKS) + "\n")
    print(f"Curves and γ over depth: {report}")
    return 0


def _new_folder(asked: str | None) -> Path:
    """The folder asked for, which must be free, or the next free runs/demo-<number>."""
    from itertools import count

    from stepsnet.errors import UsageError

    if asked is None:
        return next(folder for number in count(1) if not (folder := Path("runs") / f"demo-{number}").exists())
    folder = Path(asked)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} is not an empty folder; give another one.")
    return folder


class _Bars:
    """One progress bar a network on standard error; without a terminal, one line that says how long it takes."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        from stepsnet.cli.console import errors
        from stepsnet.research.studies.demo import ITERS, NETWORKS

        self._console = errors
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                   TextColumn("{task.fields[note]}"))
        self._progress = Progress(*columns, console=errors, disable=not errors.is_terminal)
        self._tasks = {network.key: self._progress.add_task(network.label, total=ITERS, note="", start=False) for network in NETWORKS}

    def __enter__(self) -> _Bars:
        self._console.print("Training three networks of equal cost, two at a time: a few minutes on 2 cores.")
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def step(self, network: Network, metrics: Mapping[str, Any]) -> None:
        task = self._tasks[network.key]
        self._progress.start_task(task)
        self._progress.update(task, completed=metrics["step"], note=f"loss {metrics['loss']:.3f}")
