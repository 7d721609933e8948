"""`stepsnet study NAME`."""

from __future__ import annotations

import argparse
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.cli.console import Bar, print_json, print_table, print_text, progress, say
from stepsnet.cli.options import count, refuse
from stepsnet.errors import UsageError
from stepsnet.report.table import Column, Table
from stepsnet.units import si, significant

if TYPE_CHECKING:
    from stepsnet.research.studies.results import CellResult, Results
    from stepsnet.research.studies.runner import Ended, StudyFiles

QUICK, FOLDER = "quick", "runs/studies"
RUNNING = ("data", "only", "workers", "hours")
"""Options of a study that runs."""
SUMMARY = "compare networks by rules fixed in advance: the paper's ablations, and joins; resumable"
DESCRIPTION = """\
A study fixes hypotheses, networks, data, steps, seeds and the decision rule before it runs, and reports the outcome
by that rule. A cell is one network trained with one seed, in its own process with one thread. After an interruption
the same command continues. Finished runs are reused, also across studies.

  stepsnet study --list
  stepsnet study steps                                         minutes, nothing to download
  stepsnet study fixed_width --size full --data gutenberg=DIR --data cifar10=FILE --workers 2 --hours 2
  stepsnet study fixed_width --size full --only "gutenberg-*-48-*" --data gutenberg=DIR
  stepsnet study fixed_width --report                          the results so far, without running anything
  stepsnet study fixed_flops --size paper --dry-run            the arms, their cost, the time they would take

The folder --out (default runs/studies) holds cells/ (the runs, shared by all studies), logs/, and for each study and
size results.jsonl (one line per cell as it ends), report.html, report.md and its figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", help="a study of --list")
    add("--list", action="store_true", help="all studies and their sizes")
    add("--size", help="quick (default), full, paper, or another of --list")
    add("--out", metavar="DIR", help=f"folder of cells and reports (default: {FOLDER})")
    add("--data", action="append", default=[], metavar="KEY=PATH", help="where data is: gutenberg=DIR, cifar10=FILE")
    add("--workers", type=count(most=1024), metavar="N", help="cells at a time (default: one per core of this process)")
    add("--only", metavar="PATTERN", help="only cells whose name matches, as '*-48-s0'")
    add("--hours", type=float, metavar="H", help="save everything and stop after this time")
    add("--report", action="store_true", help="write the report of the results so far, run nothing")
    add("--dry-run", action="store_true", help="show the arms and their cost, run nothing")
    add("--json", action="store_true", help="print one object")


def run(args: argparse.Namespace) -> int:
    from stepsnet.research.studies.registered import get_study

    if args.list and args.name is not None:
        raise UsageError(f"--list shows all studies, not one: leave out {args.name} or --list.")
    if args.name is None:
        refuse(args, "report", "dry-run", "size", "out", *RUNNING, because="needs the name of a study; --list has them")
        return _list(json=args.json)
    from stepsnet.research.studies.runner import StudyFiles, collect

    study = get_study(args.name)
    size = QUICK if args.size is None else args.size
    if size not in study.sizes:
        raise UsageError(f"{study.name} has no size {size!r}; its sizes are {', '.join(study.sizes)}.")
    place = StudyFiles(Path(FOLDER if args.out is None else args.out), study, size)
    if place.out.exists() and not place.out.is_dir():
        raise UsageError(f"--out {place.out} is a file, but must be a folder for cells and reports.")
    if args.dry_run:
        refuse(args, "report", *RUNNING, because="has no effect with --dry-run, which runs no cell")
        return _preview(place, json=args.json)
    if args.report:
        refuse(args, *RUNNING, because="has no effect with --report, which runs no cell")
        return _report(place, collect(place), json=args.json)
    return _run(place, args)


def _run(place: StudyFiles, args: argparse.Namespace) -> int:
    from stepsnet.research.studies.runner import ahead, collect, run_study, steps_left

    workers = args.workers if args.workers is not None else cores()
    if args.hours is not None and not args.hours > 0:  # also nan
        raise UsageError(f"--hours is {args.hours}, but must be above 0.")
    only = "*" if args.only is None else args.only
    roots: dict[str, str] = {}
    for key, path in map(_pair, args.data):
        if key in roots:
            raise UsageError(f"--data {key} is given twice; give it once.")
        roots[key] = path
    cells = ahead(place, only)
    if not cells and not any(fnmatch(cell.id, only) for cell in place.chosen().cells(collect(place).found)):
        names = "a cell is named by its arm and its seed, as ARM-s0; --dry-run lists the arms"
        raise UsageError(f"No cell of {place.study.name}, {place.size}, matches --only {only!r}: {names}.")
    total = place.chosen().count()
    say(f"{place.study.name}, {place.size}: {len(cells)} of {total} cells to run, {workers} at a time.")
    with progress(place.study.name, steps_left(place, cells), "steps") as bar:
        shown = StudyBar(bar, len(cells))
        ended = run_study(place, roots=roots, workers=workers, only=only, hours=args.hours, progress=shown)
    if ended.signal is not None:
        say(f"Stopped and saved: {_standing(ended)}; continue with the same command.")
        return 128 + ended.signal
    if ended.out_of_time:
        say(f"Stopped after --hours {args.hours:g}: {_standing(ended)}; continue with the same command.")
    return _report(place, ended.results, json=args.json)


class StudyBar:
    """A bar of steps, and a line for every cell that ends."""

    def __init__(self, bar: Bar, total: int) -> None:
        self._bar, self._total, self._done = bar, total, 0

    def steps(self, amount: int, note: str) -> None:
        self._bar.advance(amount, note=f"cell {min(self._done + 1, self._total)} of {self._total}: {note}")

    def ended(self, found: CellResult) -> None:
        self._done += 1
        result = f"failed: {found.error}" if found.error else f"validation loss {found.loss:.4f}"
        say(f"{self._done}/{self._total}  {found.cell}  {result}")


def _report(place: StudyFiles, results: Results, *, json: bool) -> int:
    from stepsnet.research.studies.pages import study_page, summary

    page = study_page(place, results)
    report, words = page.write(place.folder)
    if json:
        print_json({**summary(place, results), "report": str(report)})
    else:
        for found in page.tables:
            print_table(found)
        print_text("\n".join(["Outcome by the rule:", *(f"  {line}" for line in (*page.outcomes, *page.remarks))]))
        print()
        print_text(f"{page.lead}. Figures and registration: {report} (and {words}).")
    return 1 if results.failed() else 0


def _preview(place: StudyFiles, *, json: bool) -> int:
    from stepsnet.research.studies.pages import GPU_RATE, gpu_hours
    from stepsnet.research.studies.runner import core_hours

    size = place.chosen()
    costs = {arm.key: arm.cost() for arm in size.arms}
    hours: dict[str, float] = {}
    if place.size != "paper":  # those networks are for GPUs
        with progress("timing a few steps", len(size.arms), "arms") as bar:
            hours = core_hours(place, bar.advance)
    if json:
        print_json([
            {"arm": arm.key, "words": [*arm.setting.words, *arm.words], "params": costs[arm.key].params,
             "macs": costs[arm.key].macs, "steps": arm.steps(), "seeds": size.seeds,
             "core_hours": hours.get(arm.key)}
            for arm in size.arms
        ])  # fmt: skip
        return 0
    rows = [
        [arm.key, si(costs[arm.key].params), si(costs[arm.key].macs), f"{arm.steps():,}",
         significant(hours[arm.key]) if hours else "–", " ".join(arm.words)]
        for arm in size.arms
    ]  # fmt: skip
    words = Column(f"arguments of `stepsnet train`, seeds {size.seeds}", "text", 2)
    print_table(Table((Column("arm", "name"), "params", "MACs", "steps", "core-hours", words), rows))
    rate = f"{significant(gpu_hours(place))} hours of one GPU at {GPU_RATE / 1e12:.0f} TFLOP/s"
    print_text(f"{size.effort}. Calculated from MACs: {rate}.")
    if hours:
        total = significant(sum(hours.values()))
        print_text(f"{size.count()} cells, {total} core-hours by the step times measured here.")
    return 0


def _list(*, json: bool) -> int:
    from stepsnet.research.studies.registered import get_study, study_names

    studies = [get_study(name) for name in study_names()]
    if json:
        print_json([
            {"name": study.name, "title": study.title, "question": study.question, "rule": study.rule,
             "sizes": {name: {"cells": size.count(), "effort": size.effort} for name, size in study.sizes.items()}}
            for study in studies
        ])  # fmt: skip
        return 0
    rows = [[study.name, study.title, name, size.effort] for study in studies for name, size in study.sizes.items()]
    question, effort = Column("question", "text", 2), Column("effort", "text", 1)
    print_table(Table((Column("study", "name"), question, Column("size", "name"), effort), rows))
    return 0


def cores() -> int:
    """The cores that this process may use, where the system tells (`taskset`, a container), else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pair(word: str) -> tuple[str, str]:
    key, equals, path = word.partition("=")
    if not equals or not path:
        raise UsageError(f"--data {word} is not of the form KEY=PATH, as gutenberg=FOLDER.")
    if not Path(path).exists():
        raise UsageError(f"--data {word}: there is no {path}.")
    return key, str(Path(path).resolve())


def _standing(ended: Ended) -> str:
    found = ended.results
    return f"{len(found.found)} of {found.size.count()} cells have ended"
