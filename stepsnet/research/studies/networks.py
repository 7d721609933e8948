"""The networks that studies compare, each as an arm: what it is called in cells, in tables, and the words that make it."""

from __future__ import annotations

from collections.abc import Mapping

from stepsnet.macro.plan import StepPlan
from stepsnet.report import svg
from stepsnet.research.studies.settings import CIFAR10, CIFAR10_SWIN, DIGITS, DIGITS_SWIN, GUTENBERG, PYTHON_DOCS
from stepsnet.research.studies.study import Arm, Setting

JOINS = {"steps": "plain", "matched": "matched", "matched_grad": "matched_grad", "gain": "gain", "gain_matched": "gain_matched"}
"""Names of Steps networks in cells, and their joins: from the simplest on, in the order they were registered in."""

LABELS = {
    "residual": "residual", "steps": "Steps, plain joins (Eq. 5)", "matched": "Steps, matched joins",
    "matched_grad": "Steps, matched with gradient", "gain": "Steps, learned gain", "gain_matched": "Steps, learned gain from matched",
    "layerscale": "residual + LayerScale", "rezero": "residual + ReZero", "deepnorm": "residual + DeepNorm",
    "hyper": "residual + hyper-connections (2)",
}  # fmt: skip
COLORS = {
    "residual": svg.RESIDUAL, "steps": svg.STEPS, "matched": svg.MATCHED, "matched_grad": svg.SERIES[3],
    "gain": svg.SERIES[4], "gain_matched": svg.SERIES[5], "layerscale": svg.SERIES[3], "rezero": svg.SERIES[4],
    "deepnorm": svg.SERIES[5], "hyper": "faint",
}  # fmt: skip
REMEDIES = ("layerscale", "rezero", "deepnorm", "hyper")

WIDTHS = {GUTENBERG.key: 64, CIFAR10.key: 64, DIGITS.key: 32, PYTHON_DOCS.key: 32}
"""Of the residual networks at fixed width."""

_WIDE = {
    12: "16x2, 24x1, 32x2, 48x2, 64x2, 90x2, 128x1", 24: "16x6, 24x3, 32x3, 48x3, 64x3, 90x3, 128x3",
    48: "16x12, 24x6, 32x6, 48x6, 64x6, 90x6, 128x6", 96: "16x24, 24x12, 32x12, 48x12, 64x12, 90x12, 128x12",
}  # fmt: skip
_NARROW = {
    6: "16x1, 22x2, 32x1, 44x2", 12: "8x2, 12x1, 18x2, 22x2, 34x2, 44x2, 64x1", 24: "8x6, 12x3, 18x3, 22x3, 34x3, 44x3, 64x3",
}  # fmt: skip
PLANS: Mapping[str, Mapping[int, str]] = {GUTENBERG.key: _WIDE, CIFAR10.key: _WIDE, DIGITS.key: _NARROW, PYTHON_DOCS.key: _NARROW}
"""Steps plans of as many blocks and the same cost as the residual network: seven steps of (D, D/2 … D/2), few blocks as they fit."""

TOP = {CIFAR10.key: (128, 12), DIGITS.key: (64, 6), CIFAR10_SWIN.key: (32, 12), DIGITS_SWIN.key: (16, 12)}
"""Width and blocks of the plain network that is cut into steps where the cost is fixed; of Swin the first stage's width."""


def residual(setting: Setting, blocks: int, width: int | None = None) -> Arm:
    """The plain stack at the setting's fixed width, or at another."""
    fixed = WIDTHS[setting.key]
    name = "residual" if width in (None, fixed) else f"residual_w{width}"
    width = width or fixed
    words = (f"plan={width}x{blocks}", f"model_args.embed_dim={width}")
    return Arm(setting, name, blocks, words, LABELS["residual"], COLORS["residual"])


def remedy(setting: Setting, blocks: int, name: str) -> Arm:
    """The residual network with another residual design."""
    plain = residual(setting, blocks)
    return Arm(setting, name, blocks, (*plain.words, f"model_args.residual={name}"), LABELS[name], COLORS[name])


def steps(setting: Setting, blocks: int, name: str = "steps", *, xavier: bool = False) -> Arm:
    """The Steps network of the same blocks and cost, with the join that goes by `name`."""
    arm = planned(setting, name, PLANS[setting.key][blocks], LABELS[name], COLORS[name], join=JOINS[name])
    if not xavier:
        return arm
    return Arm(setting, f"{name}_xavier", blocks, (*arm.words, "model_args.init=xavier"), f"{arm.label}, Xavier", arm.color)


def planned(setting: Setting, name: str, plan: str, label: str, color: str = svg.STEPS, *, join: str = "plain", macro: str = "") -> Arm:
    """Any plan of one stage."""
    parsed = StepPlan.parse(plan)
    words = [f"plan={plan}", f"model_args.embed_dim={parsed.width}", f"join={join}", *([f"macro={macro}"] if macro else [])]
    return Arm(setting, name, parsed.blocks, tuple(words), label, color)


def in_steps(setting: Setting, number: int) -> Arm:
    """The plain network of the setting cut into steps by the paper's rule (Table 8): half of a step's work goes to the one before."""
    width, depth = TOP[setting.key]
    plan = str(StepPlan.default(width, depth, number, lambda value: 2 * round(value / 2)))
    label = "1 step (residual)" if number == 1 else f"{number} steps"
    return planned(setting, f"{number}steps", plan, label, svg.RESIDUAL if number == 1 else svg.STEPS)
