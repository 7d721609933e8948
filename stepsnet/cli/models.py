"""`stepsnet models` and `stepsnet info NAME`."""

from __future__ import annotations

import argparse
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import columns, format_cost, print_json, print_table, print_text, progress
from stepsnet.cli.options import count, refuse
from stepsnet.errors import UsageError, nearest
from stepsnet.report.table import Column, Table
from stepsnet.units import megabytes, si

if TYPE_CHECKING:
    from stepsnet.models import Model

SUMMARY = "list the models with their blocks, layers, parameters and MACs"
DESCRIPTION = """\
Lists every registered model with its blocks, layers, parameters, multiply-accumulates (one input of its own size) and
plan. The column "blocks" counts all residual blocks. In a ResNet this includes those that change the width, which are
not part of its plan.

  stepsnet models                  all models
  stepsnet models 'steps_swin*'    names that match a shell pattern
  stepsnet models --json           a list of objects"""

DENSE = ("detection", "segmentation")
MADE_WITH = ("plan", "img-size", "join", "macro")
COSTS = Path(__file__).parents[1] / "models" / "costs.json"
"""What `describe` returns for every registered model: counting them all takes many seconds. A test checks it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pattern", nargs="?", default="*", help="shell pattern of names, such as 'steps_*' (default: all)")
    add("--json", action="store_true", help="print a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    known = json.loads(COSTS.read_text(encoding="utf-8"))
    rows = [row for row in known if fnmatch(row["name"], args.pattern)]
    if not rows:
        close = nearest(args.pattern.strip("*"), [row["name"] for row in known])
        raise UsageError(f"No model matches '{args.pattern}'{close}; `stepsnet models` lists them all.")
    if args.json:
        print_json(rows)
    else:
        cells = [[row["name"], *format_cost(row), row["plan"]] for row in rows]
        counts = (Column("blocks", priority=2), Column("layers", priority=3), Column("params"), Column("MACs"))
        print_table(Table((Column("model", "name"), *counts, Column("plan", "text", 4)), cells))
    return 0


class Info:
    """`stepsnet info NAME`."""

    SUMMARY = "draw one model under any plan and count its cost"
    DESCRIPTION = """\
Draws the stack of a model, one bar per step, and counts its cost. --plan gives it another stack: width x blocks for
each step, narrow to wide; stages separated by ';'; or only a number of steps.

  stepsnet info steps_deit_small
  stepsnet info deit_small --plan "192x12, 272x6, 384x6"      the same network
  stepsnet info deit_small --plan 5                           five steps, derived as in the paper
  stepsnet info runs/first                                    the model of a finished run
  stepsnet info swin_tiny --plan "96x2; 192x2; 192x6, 272x3, 384x3; 768x2" --img-size 256"""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("name", help="a name of `stepsnet models`, a run, a saved file, or a folder of `stepify` or `deepen`")
        add("--plan", help="another plan, or a number of steps")
        add("--img-size", type=count(), help="count at this image size (default: the model's own)")
        joins = ("plain", "matched_grad")
        how = f"how new channels are joined: {', '.join(joins)} (default: the model's own)"
        add("--join", choices=joins, metavar="NAME", help=how)
        directions = "narrow to wide (steps, Eq. 5, default) or wide to narrow (reverse, Eq. 6)"
        add("--macro", choices=("steps", "reverse"), help=directions)
        add("--json", action="store_true", help="print one object")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from stepsnet.macro import StepPlan
        from stepsnet.models.design import has_steps
        from stepsnet.report.chart import stack_text
        from stepsnet.runs.folder import is_stepped

        if is_stepped(args.name):
            from stepsnet.surgery import load, surgery_report

            refuse(args, *MADE_WITH, because=f"is for registered names; {args.name} has its own")
            with progress(f"counting {args.name}", unit=""):
                report = surgery_report(load(args.name))
            print(report.to_json()) if args.json else print_text(str(report))
            return 0
        with progress(f"counting {args.name}", unit=""):
            figures = _describe_saved(args) or _describe_registered(args)
        if args.json:
            print_json(figures)
            return 0
        plan = str(figures["plan"])
        size = "×".join(map(str, figures["input_size"] or [])) or "the run's size"
        reverse = figures["macro"] == "reverse"
        direction = ", macro reverse (wide to narrow)" if reverse else ""
        joins = f", {figures['join']} joins" if has_steps(plan) and not reverse else ""
        print_text(f"{figures['name']} ({figures['family']}), plan {plan}{direction}{joins}\n")
        stages = [StepPlan.parse(stage) for stage in plan.split(";")]
        print(stack_text(stages, min(64, max(16, columns() - 18)), reverse=reverse))
        outside = figures["blocks"] - sum(stage.blocks for stage in stages)
        print_text(
            f"\n{figures['blocks']} blocks{f' ({outside} of them outside of the plan)' if outside else ''}, "
            f"{figures['layers']} layers, "
            f"{si(figures['params'])} parameters, {si(figures['macs'])} MACs for one input of {size}"
        )
        if figures["activations"] is None:
            print_text("Blocks and layers are those of the backbone; parameters and MACs those of the whole network.")
            return 0
        cache = f", KV cache {megabytes(figures['kv_cache'])}" if figures["kv_cache"] else ""
        print_text(f"fp32: activations {megabytes(figures['activations'])}{cache}")
        return 0


def describe(name: str, **options: Any) -> dict[str, Any]:
    """One model in figures, counted on the meta device."""
    from stepsnet.models import create_model

    return _figures(name, create_model(name, device="meta", **options))


def _describe_registered(args: argparse.Namespace) -> dict[str, Any]:
    from stepsnet.models import VisionModel, get_variant
    from stepsnet.models.design import has_steps

    if not issubclass(get_variant(args.name).family, VisionModel):
        refuse(args, "img-size", because=f"is for models of images; {args.name} takes text")
    options = {"plan": args.plan, "img_size": args.img_size, "join": args.join, "macro": args.macro}
    figures = describe(args.name, **{key: value for key, value in options.items() if value is not None})
    if not has_steps(figures["plan"]):
        refuse(args, "join", "macro", because=f"has no effect: the plan {figures['plan']} has one step per stage")
    return figures


def _describe_saved(args: argparse.Namespace) -> dict[str, Any] | None:
    """The same for a finished run or a saved file; None for a registered name."""
    from stepsnet.cli.resolve import find_model, resolve
    from stepsnet.runs.folder import read_settings

    named = resolve(args.name)
    if named.kind == "registered":
        return None
    refuse(args, *MADE_WITH, because=f"is for registered names; {args.name} has its own")
    if named.kind == "run" and read_settings(named.path)["task"] in DENSE:
        from stepsnet.train.predictor import Predictor

        return _figures(args.name, Predictor(named.path).model, dense=True)
    return _figures(args.name, find_model(args.name))


def _figures(name: str, model: Model, *, dense: bool = False) -> dict[str, Any]:
    """Of a detector or segmenter blocks and layers are those of the backbone, and only runs say the size of images."""
    from stepsnet.macro import ReverseStepsNet

    cost, memory = model.cost(), None if dense else model.memory()
    return {
        "name": name,
        "family": model.family,
        "plan": model.plan,
        "join": str(model.default_cfg["options"].get("join", "plain")),
        "macro": "reverse" if any(isinstance(net, ReverseStepsNet) for net in model.modules()) else "steps",
        "blocks": cost.blocks,
        "layers": cost.layers,
        "params": cost.params,
        "macs": cost.macs,
        "activations": memory and memory.activations,
        "kv_cache": memory and memory.kv_cache,
        "input_size": None if dense else list(model.input_size),
    }
