"""`stepsnet plan MODEL`."""

from __future__ import annotations

import argparse

from stepsnet.cli.console import print_json, print_table, print_text, progress
from stepsnet.cli.options import count
from stepsnet.report.table import Column, Table
from stepsnet.units import si

SUMMARY = "find the plan of a model for a budget of parameters, MACs or latency"
DESCRIPTION = """\
Finds how wide and how deep the steps of a model should be. --params and --macs are hard limits. --latency limits the
predicted latency; the measured one may differ. The default budgets are 1.05 times the model's own parameters and 1.03
times its MACs, also with --latency. A budget that you do not set keeps its default, so set both to get a larger model.
The main option is the number of blocks; the default is twice the plain network's.

  stepsnet plan deit_small                                       twice as deep at the same cost
  stepsnet plan deit_small --blocks max                          as deep as the budget allows
  stepsnet plan deit_tiny --macs 2.5G --params 12M --blocks 36   your own budgets
  stepsnet plan test_deit --latency 99ms@batch1                  measured on this CPU, block by block
  stepsnet plan timm:vit_small_patch16_224 --blocks 24           a model of timm; hf:TYPE_OR_FOLDER for transformers

The table has the best plan for several depths. It counts the blocks of the plan. The blocks of a ResNet that change
the width between stages are not part of the plan; `stepsnet models` and `info` count them too. Latency is predicted
from the measured times of single blocks; plans near the chosen depth are also measured end to end. Block times are
kept in ~/.cache/stepsnet."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model of `stepsnet models`, timm:NAME or hf:TYPE_OR_FOLDER")
    parser.add_argument("--params", help="at most this many parameters, as 22M")
    parser.add_argument("--macs", help="at most this many MACs for one input, as 4.6G")
    parser.add_argument("--latency", help="at most this long for one forward pass, as predicted: 10ms@batch1")
    parser.add_argument("--blocks", help="this many blocks, or max (default: twice the plain network's)")
    parser.add_argument(
        "--steps", type=count(), help="this many steps in each of the last two stages (default: the planner chooses)"
    )
    parser.add_argument("--json", action="store_true", help="print one object instead")


def run(args: argparse.Namespace) -> int:
    from stepsnet.surgery.planning import plan

    with progress(f"planning {args.model}", unit="timings") as bar:
        found = plan(
            args.model, params=args.params, macs=args.macs, latency=args.latency, blocks=args.blocks, steps=args.steps,
            tick=lambda _done, _total: bar.advance(),
        )  # fmt: skip
    if args.json:
        print_json(found.to_json())
        return 0
    timed = args.latency is not None
    columns = [Column("", "name"), Column("plan blocks", priority=0), Column("params"), Column("MACs")]
    if timed:
        columns += [Column("ms, predicted"), Column("ms, measured", priority=2), Column("error", priority=2)]
    rows = []
    among = any(row.plan == found.plain.plan for row in found.rows)
    for row in found.rows if among else (found.plain, *found.rows):
        mark = "chosen" if row == found.chosen else "plain" if row.plan == found.plain.plan else ""
        cells = [mark, str(row.blocks), si(row.params), si(row.macs)]
        if timed:
            cells += [f"{1e3 * seconds:.2f}" if seconds is not None else "" for seconds in (row.seconds, row.measured)]
            cells.append(f"{row.seconds / row.measured - 1:+.1%}" if row.seconds and row.measured else "")
        rows.append([*cells, row.plan])
    if found.model != args.model:
        print_text(f"{found.model}\n")
    print_table(Table([*columns, Column("plan", "text", priority=0)], rows))
    print_text(f"plan='{found.plan}'")
    if found.chosen.measured is not None and found.chosen.measured > found.limits["seconds"]:
        times = f"{1e3 * found.chosen.measured:.2f} ms, more than the budget of {1e3 * found.limits['seconds']:g} ms"
        print_text(f"It was measured at {times}: the budget limits the predicted latency only. Choose fewer blocks.")
    print_text(f"Residual network of the same depth and budget: {found.twin}.")
    print_text(f"Why not deeper: {found.why_not_deeper}.")
    return 0
