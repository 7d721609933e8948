"""`stepsnet eval RUN`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import format_metrics, print_json, print_text, progress, say
from stepsnet.cli.options import refuse_repeated
from stepsnet.cli.resolve import find_run
from stepsnet.cli.train import PREPARING
from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.runs.folder import read_settings
from stepsnet.units import counted

if TYPE_CHECKING:
    from stepsnet.tasks.base import Batch
    from stepsnet.train.loader import ValidationBatches

SUMMARY = "evaluate the weights of a run"
DESCRIPTION = """\
Evaluates a run on its validation data: the final weights, or those of the latest checkpoint if it is not finished.

  stepsnet eval runs/first
  stepsnet eval runs/first --ema                     the running average of the weights
  stepsnet eval runs/first data.root=/another/place eval.batch_size=500 --json
  stepsnet eval runs/nuclei --results found.json     the detections, as COCO results"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", help="the folder of the run")
    keys = "workers, device, data.root, data.valid, data.stride, data.valid_windows or eval.batch_size"
    add("words", nargs="*", default=[], metavar="key=value", help=keys)
    add("--ema", action="store_true", help="evaluate the averaged weights")
    add("--results", metavar="FILE", help="detection: write the detections there, as COCO results")
    add("--json", action="store_true", help="print one object instead of a sentence")


def run(args: argparse.Namespace) -> int:
    from stepsnet.report.html import check_place
    from stepsnet.train.evaluate import evaluate_run

    def watched(batches: ValidationBatches) -> Iterator[tuple[Batch, bool]]:
        preparing.close()
        samples.append(batches.samples)
        with progress("evaluating", len(batches), "batches") as bar:
            for batch in batches:
                yield batch
                bar.advance()

    refuse_repeated(args.words)
    folder = find_run(args.run)
    if args.results and (task := read_settings(folder).get("task")) != "detection":
        raise UsageError(f"--results is for runs of detection: {folder}, a run of {task}, has no detections to write.")
    if args.results:
        check_place(Path(args.results))
    kept: list[Any] = []
    samples: list[int] = []
    with progress(PREPARING, unit="") as preparing:
        found = evaluate_run(folder, args.words, ema=args.ema, through=watched, keep=kept.extend)
    if args.results:
        results = [found for found in kept if isinstance(found, dict)]
        replace_file(Path(args.results), (json.dumps(results) + "\n").encode())
        say(f"Detections: {args.results}")
    if args.json:
        print_json({"run": str(folder), "ema": args.ema, "samples": samples[0], "metrics": found})
    else:
        print_text(f"{folder}: {format_metrics(found)} on {counted(samples[0], 'sample')}")
    return 0
