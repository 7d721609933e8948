"""`stepsnet study NAME`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepsnet.cli.console import Bar
    from stepsnet.research.studies.results import Measured, Results
    from stepsnet.research.studies.runner import Ended, Place

SUMMARY = "compare networks by rules that were fixed before: the paper's ablations, and joins; resumable"
DESCRIPTION = """\
A study fixes hypotheses, networks, data, steps, seeds and the rule that decides before it runs, and reports the outcome by
that rule, whatever it is. Its cells are ordinary runs in processes of one thread. Stopped in any way, it goes on where it
was with the same command; a finished cell is never run twice, also not by another study that has it too.

  stepsnet study --list
  stepsnet study steps                                         minutes, nothing to download
  stepsnet study fixed_width --size full --data gutenberg=DIR --data cifar10=FILE --workers 2 --hours 2
  stepsnet study fixed_width --size full --only "gutenberg-*-48-*" --data gutenberg=DIR
  stepsnet study join --report                                 what is known so far, without running anything
  stepsnet study fixed_flops --size paper --dry-run            the cells, their cost, the time they would take

Below --out (default runs/studies): cells/ (the runs, shared by all studies), logs/, and for each study and size
results.jsonl (a line a cell as it ends), report.html, report.md and its figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a study of --list")
    parser.add_argument("--list", action="store_true", help="all studies and their sizes")
    parser.add_argument("--size", default="quick", help="quick (default), full, paper, or another of --list")
    parser.add_argument("--out", default="runs/studies", metavar="DIR", help="where cells and reports are (default: runs/studies)")
    parser.add_argument("--data", action="append", default=[], metavar="KEY=PATH", help="where data lie: gutenberg=DIR, cifar10=FILE")
    parser.add_argument("--workers", type=int, metavar="N", help="cells at a time (default: one a core that this process may use)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only cells of such names, as '*-48-s0'")
    parser.add_argument("--hours", type=float, metavar="H", help="stop after this long, everything saved")
    parser.add_argument("--report", action="store_true", help="write the report of what is known, run nothing")
    parser.add_argument("--dry-run", action="store_true", help="show the cells and what they cost, run nothing")
    parser.add_argument("--json", action="store_true", help="print one object instead")


def run(args: argparse.Namespace) -> int:
    from stepsnet.errors import UsageError
    from stepsnet.research.studies.registered import get_study
    from stepsnet.research.studies.runner import Place, collect

    if args.list or args.name is None:
        return _list(json=args.json)
    study = get_study(args.name)
    if args.size not in study.sizes:
        raise UsageError(f"{study.name} has no size {args.size!r}; its sizes are {', '.join(study.sizes)}.")
    place = Place(Path(args.out), study, args.size)
    if place.out.exists() and not place.out.is_dir():
        raise UsageError(f"--out {args.out} is a file; it should be a folder, where cells and reports are.")
    if args.dry_run:
        return _preview(place, json=args.json)
    if args.report:
        return _report(place, collect(place), json=args.json)
    return _run(place, args)


def _run(place: Place, args: argparse.Namespace) -> int:
    from stepsnet.cli.console import errors, progress
    from stepsnet.errors import UsageError
    from stepsnet.optional import require
    from stepsnet.research.studies.runner import left, run_study, steps_left

    require("matplotlib.figure", extra="plots")  # to be told now, not when the work is done
    workers = args.workers if args.workers is not None else _cores()
    if workers < 1 or (args.hours is not None and args.hours <= 0):
        raise UsageError(f"--workers and --hours must be above 0, not {workers} and {args.hours}.")
    roots = dict(_pair(word) for word in args.data)
    cells = left(place, args.only)
    if not cells and len(place.chosen().cells()) and args.only != "*" and not _matching(place, args.only):
        raise UsageError(f"No cell of {place.study.name} {place.size} matches --only {args.only!r}; --dry-run lists them.")
    errors.print(f"{place.study.name}, {place.size}: {len(cells)} of {len(place.chosen().cells())} cells to run, {workers} at a time.")
    with progress(place.study.name, steps_left(place, cells), "steps") as bar:
        ended = run_study(place, roots=roots, workers=workers, only=args.only, hours=args.hours, watch=_Shown(bar, len(cells)))
    if ended.signal is not None:
        print(f"Stopped and saved: {_standing(ended)}; go on with the same command.", file=sys.stderr)
        return 128 + ended.signal
    if ended.out_of_time:
        print(f"Time is up: {_standing(ended)}; go on with the same command.", file=sys.stderr)
    return _report(place, ended.results, json=args.json)


class _Shown:
    """A bar of updates, and a line for every cell that ends."""

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar, self._total, self._done = bar, total, 0

    def steps(self, amount: int, note: str) -> None:
        self._bar.advance(amount, note=f"cell {min(self._done + 1, self._total)} of {self._total}: {note}")

    def ended(self, found: Measured) -> None:
        from stepsnet.cli.console import errors

        self._done += 1
        what = f"failed: {found.error}" if found.error else f"validation loss {found.loss:.4f}"
        errors.print(f"{self._done}/{self._total}  {found.cell}  {what}", soft_wrap=True)


def _report(place: Place, results: Results, *, json: bool) -> int:
    from stepsnet.cli.console import print_json
    from stepsnet.cli.numbers import print_table
    from stepsnet.report.study import write_study
    from stepsnet.research.studies.pages import study_page, summary

    page = study_page(place, results)
    report, words = write_study(place.folder, page)
    if json:
        print_json({**summary(place, results), "report": str(report)})
    else:
        for found in page.tables:
            print_table(found.columns, found.rows, title=found.caption)
        print("\n".join(["Outcome by the rule:", *(f"  {line}" for line in (*page.outcomes, *page.remarks))]))
        print(f"\n{page.lead}. Figures and all that was registered: {report} (and {words}).")
    return 1 if results.failed() else 0


def _preview(place: Place, *, json: bool) -> int:
    from stepsnet.cli.console import print_json
    from stepsnet.cli.numbers import million, print_table
    from stepsnet.research.studies.pages import GPU_RATE, gpu_hours

    size = place.chosen()
    if json:
        print_json([{"arm": arm.key, "words": [*arm.setting.words, *arm.words], "params": arm.cost().params, "macs": arm.cost().macs,
                     "steps": arm.steps(), "seeds": size.seeds} for arm in size.arms])
        return 0
    rows = [[arm.key, million(arm.cost().params), million(arm.cost().macs), f"{arm.steps():,}", " ".join(arm.words)] for arm in size.arms]
    print_table(["arm", "params", "MACs", "steps", f"what follows `stepsnet train`, seeds {size.seeds}"], rows, left=(0, 4))
    print(f"{size.effort}. By arithmetic, {gpu_hours(place):,.2g} hours of one GPU that sustains {GPU_RATE / 1e12:.0f} TFLOP/s.")
    return 0


def _list(*, json: bool) -> int:
    from stepsnet.cli.console import print_json
    from stepsnet.cli.numbers import print_table
    from stepsnet.research.studies.registered import get_study, study_names

    studies = [get_study(name) for name in study_names()]
    if json:
        print_json([{"name": study.name, "title": study.title, "question": study.question, "rule": study.rule,
                     "sizes": {name: {"cells": len(size.cells()), "effort": size.effort} for name, size in study.sizes.items()}}
                    for study in studies])
        return 0
    rows = [[study.name, study.title, name, size.effort] for study in studies for name, size in study.sizes.items()]
    print_table(["study", "what it asks", "size", "effort"], rows, left=(0, 1, 2, 3))
    return 0


def _cores() -> int:
    """Those that this process may use, where the system says so (`taskset`, a container), else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pair(word: str) -> tuple[str, str]:
    from stepsnet.errors import UsageError

    key, equals, path = word.partition("=")
    if not equals:
        raise UsageError(f"--data {word} is not of the form KEY=PATH, as gutenberg=FOLDER.")
    if not Path(path).exists():
        raise UsageError(f"--data {word}: there is no {path}.")
    return key, str(Path(path).resolve())


def _matching(place: Place, pattern: str) -> bool:
    from fnmatch import fnmatch

    return any(fnmatch(cell.id, pattern) for cell in place.chosen().cells())


def _standing(ended: Ended) -> str:
    found = ended.results
    return f"{len(found.found)} of {len(found.size.cells())} cells have ended"
