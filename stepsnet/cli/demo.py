"""`stepsnet demo`."""

from __future__ import annotations

import argparse
import time
from itertools import count
from pathlib import Path

from stepsnet.cli.console import print_json, print_table, print_text, progress, say
from stepsnet.cli.options import seed
from stepsnet.errors import UsageError
from stepsnet.report.table import Table

SUMMARY = "compare deep networks of equal cost on a small data set; nothing to download, a few minutes"
DESCRIPTION = """\
Trains three networks of equal depth, parameters and multiply-accumulates on scikit-learn's digits: a plain residual
network, StepsNet (Eq. 5) and StepsNet with matched_grad joins. Prints a table and writes report.html with loss
curves and the shortcut ratio over depth. Takes a few minutes on 2 cores.
docs/results/demo.md says how it was chosen and confirmed.
To continue an interrupted demo, give its folder as --out.

  stepsnet demo
  stepsnet demo --seed 7 --out runs/my-demo
  stepsnet demo --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    order = "random seed for initial weights and order of the data (default: 0)"
    add("--seed", type=seed, default=0, metavar="N", help=order)
    add("--json", action="store_true", help="print one object instead of the table")
    add("--out", metavar="DIR", help="folder of the runs and the report (default: the next free runs/demo-<number>)")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.study import StudyBar, cores
    from stepsnet.research.studies import demo, runner

    place = runner.StudyFiles(_folder(args.out, args.seed), demo.demo_study((args.seed,), demo.arms()), "quick")
    cells, began = runner.left(place), time.perf_counter()
    workers = min(demo.WORKERS, cores())
    if cells:
        say(f"Training {len(cells)} networks of equal cost, {workers} at a time: a few minutes on 2 cores.")
    with progress("demo", runner.steps_left(place, cells), "steps") as bar:
        ended = runner.run_study(place, roots={}, workers=workers, progress=StudyBar(bar, len(cells)))
    if ended.signal is not None:
        say(f"Stopped and saved. `stepsnet demo --seed {args.seed} --out {place.out}` continues.")
        return 128 + ended.signal
    if ended.results.failed():
        return 1
    found = demo.summary(ended.results, time.perf_counter() - began)
    report = demo.write_report(place, found)
    if args.json:
        print_json({**found, "report": str(report)})
        return 0
    print_table(Table(demo.COLUMNS, [demo.row(network) for network in found["networks"]]))
    print_text("\n".join(found["findings"]) + "\n")
    print_text("\n".join(demo.REMARKS) + "\n")
    print_text(f"Curves and γ over depth: {report}")
    return 0


def _folder(asked: str | None, seed: int) -> Path:
    """Create and return the folder of --out, empty or of a demo with this seed, or the next free runs/demo-<number>."""
    numbered = (Path("runs") / f"demo-{number}" for number in count(1))
    folder = Path(asked) if asked is not None else next(folder for folder in numbered if not folder.exists())
    if folder.exists() and not (folder / "cells").is_dir() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} is not an empty folder and not one of a demo; give another one.")
    cells = folder / "cells"
    if cells.is_dir() and any(cell.is_dir() and not cell.name.endswith(f"-s{seed}") for cell in cells.iterdir()):
        raise UsageError(f"--out {folder} has a demo with another seed than {seed}; give another one.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
