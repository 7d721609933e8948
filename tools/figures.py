"""Draw the figures of docs/concepts with the library's own chart engine: `python -m tools.figures`.

`gamma` and `joins` are measured on networks with random weights (seed 0), so other processors may change their last
digits; `plan` and `cost` are exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stepsnet
from stepsnet.macro import StepPlan
from stepsnet.models.deit import round_width
from stepsnet.report.chart import Chart, Line, LineChart, StackChart
from stepsnet.report.svg import MATCHED, RESIDUAL, STEPS

FOLDER = Path(__file__).parent.parent / "docs" / "concepts"
NETWORKS = {
    "residual, 136x48": ("deit_deep_d48", "plain", RESIDUAL),
    "Steps, plain joins": ("steps_deit_deep_d48", "plain", STEPS),
    "Steps, matched joins": ("steps_deit_deep_d48", "matched_grad", MATCHED),
}


def network(name: str, join: str) -> tuple[nn.Module, Tensor]:
    """A network of 48 blocks with Xavier's initialisation, and a batch for it."""
    torch.manual_seed(0)
    model = stepsnet.create_model(name, join=join, init="xavier", img_size=64).eval()
    return model, torch.randn(2, 3, 64, 64)


def plan_chart() -> Chart:
    plans = [StepPlan.parse("384x12"), StepPlan.parse("192x12, 272x6, 384x6")]
    note = "Width x blocks. Bars are as long as a step is wide; the light part joins at this step."
    return StackChart(title="DeiT-S and Steps-DeiT-S: equal cost", note=note, plans=plans)


def cost_chart() -> Chart:
    steps = [1, 2, 3, 4, 5]
    plans = [str(StepPlan.default(384, 12, number, round_width)) for number in steps]
    costs = [stepsnet.cost_of(stepsnet.create_model("deit_small", plan=plan, device="meta")) for plan in plans]
    plain = costs[0]
    values = {
        "blocks": [float(cost.blocks or 0) / float(plain.blocks or 1) for cost in costs],
        "parameters": [cost.params / plain.params for cost in costs],
        "MACs": [cost.macs / plain.macs for cost in costs],
    }
    lines = [Line(label, steps, found, names=plans) for label, found in values.items()]
    note = "DeiT-S and its plans of 1 to 5 steps, relative to one step."
    return LineChart(title="Depth grows, cost does not", note=note, lines=lines, x_label="steps", y_label="× one step")


def gamma_chart() -> Chart:
    lines = []
    for label, (name, join, color) in NETWORKS.items():
        model, images = network(name, join)
        found = stepsnet.analysis.shortcut_ratio(model, images)
        lines.append(Line(label, found.block, found.gamma, color))
    note = "DeiTs of 48 blocks and equal cost before training, Xavier's initialisation, random images."
    return LineChart(
        title="Shortcut ratio γ over depth", note=note, lines=lines, x_label="block", y_label="γ", y_range=(0.0, 1.0)
    )


def joins_chart() -> Chart:
    lines = []
    for label, (name, join, color) in list(NETWORKS.items())[1:]:
        model, images = network(name, join)
        shares = new_channels(model, images)
        lines.append(Line(label, list(range(1, len(shares) + 1)), shares, color))
    note = "RMS of the channels that join, over the RMS of those that they join. The same networks."
    return LineChart(
        title="New channels at the joins", note=note, lines=lines, x_label="join", y_label="RMS ratio", y_range=(0.0,)
    )


def new_channels(model: nn.Module, images: Tensor) -> list[float]:
    """At each join, the RMS of the new channels as the next step sees them over that of the old ones."""
    found: list[float] = []

    def measure(_join: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        old, new = output.split((inputs[0].shape[-1], inputs[1].shape[-1]), dim=-1)
        found.append(float(new.square().mean().sqrt() / old.square().mean().sqrt()))

    net: Any = model.net
    hooks = [join.register_forward_hook(measure) for join in net.joins]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return found


CHARTS = {"plan": plan_chart, "cost": cost_chart, "gamma": gamma_chart, "joins": joins_chart}

if __name__ == "__main__":
    for name, draw in CHARTS.items():
        print(draw().save(FOLDER / f"{name}.svg"))
