"""`stepsnet resume RUN`."""

from __future__ import annotations

import argparse

SUMMARY = "continue a run that was stopped, exactly where it stopped"
DESCRIPTION = """\
Continues a run from its latest checkpoint. What it computes is what the uninterrupted run would have computed, to the bit;
only where and how it runs can be changed: workers, parallel, device, data.root, checkpoint.every, nonfinite …
On another number of processes sums are rounded otherwise, and batch norms look at each process's own share of the batch.

  stepsnet resume runs/digits-test_steps_deit-1
  stepsnet resume runs/first workers=4 data.root=/another/place
  torchrun --nproc-per-node 2 -m stepsnet resume runs/first parallel=ddp"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("words", nargs="*", metavar="key=value", help="a setting of where and how it runs")
    parser.add_argument("--json", action="store_true", help="print one object instead of sentences")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.watching import carry_out, existing_run
    from stepsnet.report.run import run_report
    from stepsnet.runs.folder import is_finished
    from stepsnet.train.trainer import resume

    folder = existing_run(args.run)
    if is_finished(folder) and not (folder / "report.html").exists():  # it was killed between its last two files
        run_report(folder)
    return carry_out(lambda watchers: resume(folder, args.words, watchers), json=args.json)
