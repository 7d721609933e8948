"""`stepsnet models`."""

from __future__ import annotations

import argparse
from typing import Any

SUMMARY = "list the models with their blocks, layers, parameters and MACs"
DESCRIPTION = """\
Every registered model with its blocks, layers, parameters, multiply-accumulates (one input at its own size) and plan.

  stepsnet models                  all of them
  stepsnet models 'steps_swin*'    those that match a shell pattern
  stepsnet models --json           for programs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern of names, such as 'steps_*' (default: all)")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json, progress
    from stepsnet.cli.numbers import format_cost, print_table
    from stepsnet.errors import UsageError, nearest
    from stepsnet.models import list_models

    names = list_models(args.pattern)
    if not names:
        close = nearest(args.pattern.strip("*"), list_models())
        raise UsageError(f"no model matches '{args.pattern}'{close}; `stepsnet models` lists them all")
    rows = []
    with progress("counting", len(names), "models") as bar:
        for name in names:
            rows.append(describe(name))
            bar.advance()
    if args.json:
        print_json(rows)
    else:
        cells = [[row["name"], *format_cost(row), row["plan"]] for row in rows]
        print_table(("model", "blocks", "layers", "params", "MACs", "plan"), cells, left=(0, 5))
    return 0


def describe(name: str, **options: Any) -> dict[str, Any]:
    """One model in figures, by closed form: nothing is allocated and nothing runs."""
    from stepsnet.models import create_model

    model = create_model(name, device="meta", **options)
    cost = model.closed_form()
    return {
        "name": name,
        "family": model.family,
        "plan": model.plan,
        "blocks": cost.blocks,
        "layers": cost.layers,
        "params": cost.params,
        "macs": cost.macs,
        "input_size": list(model.input_size),
    }
