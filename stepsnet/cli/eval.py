"""`stepsnet eval RUN`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsnet.tasks.base import Batch
    from stepsnet.train.loader import ValidationBatches

SUMMARY = "evaluate the weights of a run"
DESCRIPTION = """\
Evaluates a run on its validation data: the final weights, or those of the latest checkpoint while it is unfinished.

  stepsnet eval runs/first
  stepsnet eval runs/first --ema                     the running average of the weights
  stepsnet eval runs/first data.root=/another/place eval.batch_size=500 --json
  stepsnet eval runs/nuclei --results found.json     what a detector finds, in the format of COCO's results"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("words", nargs="*", metavar="key=value", help="a setting of where and how it runs")
    parser.add_argument("--ema", action="store_true", help="evaluate the averaged weights")
    parser.add_argument("--results", metavar="FILE", help="write a detector's findings there, in the format of COCO's results")
    parser.add_argument("--json", action="store_true", help="print one object instead of a sentence")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json, progress
    from stepsnet.cli.watching import existing_run, in_words
    from stepsnet.train.evaluate import evaluate_run

    def watched(batches: ValidationBatches) -> Iterator[tuple[Batch, bool]]:
        with progress("evaluating", len(batches), "batches") as bar:
            for batch in batches:
                yield batch
                bar.advance()

    folder = existing_run(args.run)
    kept: list[Any] = []
    found = evaluate_run(folder, args.words, ema=args.ema, through=watched, keep=kept.extend)
    if args.results:
        write_results(kept, args.results)
    if args.json:
        print_json({"run": str(folder), "ema": args.ema, "metrics": found})
    else:
        print(f"{folder}: {in_words(found)}")
    return 0


def write_results(kept: list[Any], path: str) -> None:
    """The findings among the predictions as one JSON list."""
    import json

    from stepsnet.errors import UsageError

    if not kept:
        raise UsageError("--results is for runs of detection: no other task has findings to write.")
    Path(path).write_text(json.dumps([found for found in kept if isinstance(found, dict)]) + "\n", encoding="utf-8")
