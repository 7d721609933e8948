"""`stepsnet info NAME`."""

from __future__ import annotations

import argparse

SUMMARY = "show one model, under any plan: its stack drawn, its cost counted"
DESCRIPTION = """\
Draws a model's stack, one bar per step, and counts it. With --plan, any other stack in the same family: widths x blocks,
narrow to wide; stages separated by ';'; or just a number of steps.

  stepsnet info steps_deit_small
  stepsnet info deit_small --plan "192x12, 272x6, 384x6"      the same network
  stepsnet info deit_small --plan 5                           five steps, derived as the paper does
  stepsnet info swin_tiny --plan "96x2; 192x2; 192x6, 272x3, 384x3; 768x2" --img-size 256"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a model of `stepsnet models`")
    parser.add_argument("--plan", help="another plan for it, or a number of steps")
    parser.add_argument("--img-size", type=int, help="count at this picture size (default: the model's own)")
    joins = ("plain", "matched", "matched_grad", "gain", "gain_matched")
    parser.add_argument("--join", choices=joins, help="how a fresh slice joins (default: plain, Eq. 5)")
    parser.add_argument("--macro", choices=("steps", "reverse"), help="narrow to wide (Eq. 5, default) or the reverse (Eq. 6)")
    parser.add_argument("--json", action="store_true", help="print one object instead")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json
    from stepsnet.cli.models import describe
    from stepsnet.cli.numbers import million
    from stepsnet.macro import StepPlan
    from stepsnet.report.stack import stack_text

    asked = {"plan": args.plan, "img_size": args.img_size, "join": args.join, "macro": args.macro}
    figures = describe(args.name, **{key: value for key, value in asked.items() if value is not None})
    if args.json:
        print_json(figures)
        return 0
    plan = str(figures["plan"])
    plans = [StepPlan.parse(stage) for stage in plan.split(";")]
    size = "×".join(map(str, figures["input_size"]))
    print(f"{figures['name']} ({figures['family']}), plan {plan}\n")
    print(stack_text(plans))
    print(
        f"\n{figures['blocks']} blocks, {figures['layers']} layers, "
        f"{million(figures['params'])} parameters, {million(figures['macs'])} MACs for one input of {size}"
    )
    return 0
