"""`stepsnet demo`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import print_json, print_table, progress, say, seed
from stepsnet.errors import RunFailed, UsageError
from stepsnet.report.table import Table

if TYPE_CHECKING:
    from stepsnet.research.studies.demo import Network

SUMMARY = "compare deep networks of equal cost on a small data set; nothing to download, a few minutes"
DESCRIPTION = """\
Trains three networks of equal depth, parameters and multiply-accumulates on scikit-learn's digits: a plain residual
network, StepsNet (Eq. 5) and StepsNet with matched joins. Prints a table and writes report.html with loss curves and
the shortcut ratio over depth. Takes a few minutes on 2 cores. docs/demo.md says how it was chosen and confirmed.

  stepsnet demo
  stepsnet demo --seed 7 --out runs/my-demo
  stepsnet demo --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seed", type=seed, default=0, metavar="N", help="of initial weights and order of the data (default: 0)")
    add("--json", action="store_true", help="print one object instead of the table")
    add("--out", metavar="DIR", help="folder of the runs and the report (default: the next free runs/demo-<number>)")


def run(args: argparse.Namespace) -> int:
    from stepsnet.research.studies.demo import ITERS, NETWORKS, run_demo
    from stepsnet.research.studies.demo_report import COLUMNS, REMARKS, cells, findings, write_report

    out = _new_folder(args.out)
    say("Training three networks of equal cost, two at a time: a few minutes on 2 cores.")
    try:
        with progress("demo: step", len(NETWORKS) * ITERS) as bar:

            def step(network: Network, metrics: Mapping[str, Any]) -> None:
                bar.advance(note=f"{network.label}: loss {metrics['loss']:.3f}")

            demo = run_demo(args.seed, out, step)
    except RunFailed as failure:
        say(str(failure))
        return 1
    report = write_report(demo, out)
    if args.json:
        print_json({**asdict(demo), "ranking": demo.ranking(), "findings": findings(demo), "report": str(report)})
        return 0
    print_table(Table(COLUMNS, [[outcome.label, *cells(outcome)] for outcome in demo.networks]))
    print("\n".join(findings(demo)) + "\n")
    print("\n".join(REMARKS) + "\n")
    print(f"Curves and γ over depth: {report}")
    return 0


def _new_folder(asked: str | None) -> Path:
    """The folder of --out, which must be empty, or the next free runs/demo-<number>. It exists afterwards."""
    numbered = (Path("runs") / f"demo-{number}" for number in count(1))
    folder = Path(asked) if asked is not None else next(folder for folder in numbered if not folder.exists())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} is not an empty folder; give another one.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
