"""Measurements of stepify and of the planner.

    python -m stepsnet.research.bench.surgery waiting [--batch 4] [--rounds 9] [--mode inference training] [--json]
    python -m stepsnet.research.bench.surgery planner [--models deit_small swin_tiny …] [--json]

waiting: a stepified ViT-S of timm (192x12, 272x6, 384x6; the size of DeiT-S) carries all 384 channels from block to
block. Its blocks are timed against `StepsNet` of the same blocks, which carries only the channels of a step. The two
take turns; the clock is the processor time of one thread, so that other processes on the machine matter little. Target:
at most 3 % slower.
planner: seconds of processor time to count the blocks of all widths once, and to search all plans, without latency.
Target: a space of at least 1e6 plans is searched in under 5 s.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.macro import Stack, StepPlan, StepsNet
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision
from stepsnet.planner import ZooSubject
from stepsnet.planner.planning import SLACK, search_all
from stepsnet.planner.subject import count
from stepsnet.report.bench import machine_line
from stepsnet.research.bench.timing import Quartiles, describe_machine, interleave, threads
from stepsnet.surgery import stepify

MODEL, PLAN, TOKENS = "vit_small_patch16_224", "192x12, 272x6, 384x6", 197
SLOWER = 0.03
CANDIDATES, SECONDS = 1e6, 5.0
PLANNED = ("deit_tiny", "deit_small", "deit_base", "swin_tiny", "transformer_30m")


def waiting(args: argparse.Namespace) -> int:
    import_torchvision()
    torch.manual_seed(0)
    model = stepify(require("timm", extra="timm").create_model(MODEL), PLAN)
    stepped, native = model.blocks, native_of(list(model.blocks), PLAN)
    x = torch.randn(args.batch, TOKENS, 384)
    with torch.no_grad():
        assert torch.equal(stepped(x), native(x)), "not the same network"
    rows = []
    with threads(1):
        for mode in args.mode:
            passes = [_pass(module, x, mode) for module in (native, stepped)]
            own, ours = interleave(passes, rounds=args.rounds, clock=time.process_time)
            slower = Quartiles.of([a / b - 1 for a, b in zip(ours, own, strict=True)])
            seconds = {name: asdict(Quartiles.of(found)) for name, found in (("native", own), ("stepified", ours))}
            rows.append({"mode": mode, "slower": asdict(slower), **seconds})
        document = {"batch": args.batch, "rounds": args.rounds, "machine": describe_machine(), "rows": rows}
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print("| mode | native StepsNet | stepified | slower | lower and upper quartile |\n|---|---|---|---|---|")
        for row in rows:
            times = [f"{1e3 * row[name]['median']:.0f} ms" for name in ("native", "stepified")]
            change = {key: f"{value:+.1%}" for key, value in row["slower"].items()}
            spread = f"{change['lower']} … {change['upper']}"
            print(f"| {row['mode']} | {times[0]} | {times[1]} | {change['median']} | {spread} |")
        print(f"\nBatch {args.batch}, median of {args.rounds} rounds. {machine_line(document)}")
    return 0 if all(row["slower"]["median"] <= SLOWER for row in rows) else 1


def native_of(blocks: list[nn.Module], plan: str) -> StepsNet:
    """StepsNet of copies of the same blocks, with the class that timm gave them."""
    copies = copy.deepcopy(blocks)
    for block in copies:
        if hasattr(block, "stepsnet_width"):
            block.__class__ = type(block).__mro__[1]
    parsed, rest = StepPlan.parse(plan), iter(copies)
    return StepsNet([Stack([next(rest) for _ in range(depth)]) for depth in parsed.depths], parsed.widths)


def _pass(module: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    def infer() -> object:
        with torch.inference_mode():
            return module(x)

    def train() -> object:
        y = module(x.detach().requires_grad_())
        y.square().mean().backward()
        module.zero_grad(set_to_none=True)
        return y

    return infer if mode == "inference" else train


def planner(args: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for name in args.models:
        began = time.process_time()
        subject = ZooSubject(name)
        counted = count(subject)
        ready = time.process_time()
        whole = counted.fixed + sum(stage.plain_cost for stage in counted.stages)
        limit = whole * [SLACK["params"], SLACK["macs"], 1.0] + [0.0, 0.0, 1.0]
        _, candidates = search_all(subject, counted, limit, whole[1], None)
        seconds = {"counting": ready - began, "search": time.process_time() - ready}
        rows.append({"model": name, "candidates": candidates, **seconds})
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print("| model | counting | plans | search |\n|---|---|---|---|")
        for row in rows:
            cells = (row["model"], f"{row['counting']:.2f} s", f"{row['candidates']:.2g}", f"{row['search']:.2f} s")
            print(f"| {' | '.join(cells)} |")
    met = all(row["search"] < SECONDS for row in rows) and any(row["candidates"] >= CANDIDATES for row in rows)
    return 0 if met else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first, second = commands.add_parser("waiting"), commands.add_parser("planner")
    first.set_defaults(check=waiting)
    first.add_argument("--batch", type=int, default=4)
    first.add_argument("--rounds", type=int, default=9)
    first.add_argument("--mode", nargs="+", choices=("inference", "training"), default=["inference", "training"])
    second.set_defaults(check=planner)
    second.add_argument("--models", nargs="+", default=PLANNED, metavar="MODEL")
    for command in (first, second):
        command.add_argument("--json", action="store_true", help="print one object")
    args = parser.parse_args()
    return int(args.check(args))


if __name__ == "__main__":
    sys.exit(main())
