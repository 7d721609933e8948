"""Width against depth at constant multiply-accumulates (Table 5b)."""

from __future__ import annotations

from stepsnet.research.studies.charts import Charts, loss_over_blocks
from stepsnet.research.studies.networks import COLORS, JOINS, LABELS, PLANS, planned, residual
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.rules import RULE, Outcome, contrast
from stepsnet.research.studies.settings import CIFAR10, DIGITS, GUTENBERG, IMAGENET_SWIN
from stepsnet.research.studies.study import Arm, Setting, Size, Study

# All of one setting have the MACs of its 64x48 (digits: 32x24); widths are the even ones that come nearest.
WIDTHS = {
    GUTENBERG.key: {12: 138, 24: 94, 48: 64, 96: 42},
    CIFAR10.key: {12: 130, 24: 92, 48: 64, 96: 44},
    DIGITS.key: {6: 66, 12: 46, 24: 32, 48: 22},
}
CUT = {
    GUTENBERG.key: {
        24: "68x12, 94x6, 134x6", 48: PLANS[GUTENBERG.key][48], 96: "12x24, 16x12, 22x12, 32x12, 44x12, 62x12, 88x12",
    },
    CIFAR10.key: {24: "64x12, 92x6, 128x6", 48: PLANS[CIFAR10.key][48], 96: "12x24, 16x12, 22x12, 32x12, 46x12, 64x12, 90x12"},
    DIGITS.key: {12: "32x6, 46x3, 66x3", 24: PLANS[DIGITS.key][24], 48: "6x12, 8x6, 12x6, 16x6, 22x6, 32x6, 44x6"},
}
COMPARED = ("residual", "steps", "matched")


def arms(setting: Setting) -> list[Arm]:
    found = [residual(setting, blocks, width) for blocks, width in WIDTHS[setting.key].items()]
    for name in ("steps", "matched"):
        for blocks, plan in CUT[setting.key].items():
            known = name if plan == PLANS[setting.key].get(blocks) else f"{name}_flops"
            found.append(planned(setting, known, plan, LABELS[name], COLORS[name], join=JOINS[name]))
    return found


def paper_arms() -> list[Arm]:
    plain = {12: "swin_tiny"} | {blocks: f"swin_deep_d{blocks}" for blocks in (24, 48, 72, 96)}
    cut = {26: "steps_swin_tiny"} | {blocks: f"steps_swin_deep_d{blocks}" for blocks in (14, 48, 64, 96)}

    def arm(name: str, blocks: int, model: str, *words: str) -> Arm:
        return Arm(IMAGENET_SWIN, name, blocks, (f"model={model}", *words), LABELS[name], COLORS[name])

    return [
        *(arm("residual", blocks, model) for blocks, model in plain.items()),
        *(arm("steps", blocks, model) for blocks, model in sorted(cut.items())),
        *(arm("matched", blocks, model, "join=matched") for blocks, model in sorted(cut.items())),
    ]


def decide(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        of = {label: {arm.blocks: arm.key for arm in results.size.of(setting) if arm.label == LABELS[label]} for label in COMPARED}
        plain, cut, matched = (of[label] for label in COMPARED)
        common = sorted(plain.keys() & cut.keys())
        least, most = common[0], common[-1]
        where = f"{setting.key}, {most} blocks"
        narrow = f"The residual network of {most} blocks is worse than that of {sorted(plain)[1]} ({setting.key})"
        outcomes += [
            contrast(results, narrow, better=[plain[sorted(plain)[1]]], worse=[plain[most]]),
            contrast(results, f"Steps beats residual ({where})", better=[cut[most]], worse=[plain[most]]),
            contrast(results, f"Matched Steps beats residual ({where})", better=[matched[most]], worse=[plain[most]]),
        ]
        for label, ours in (("Steps", cut), ("matched Steps", matched)):
            sentence = f"From {least} to {most} blocks, {label} loses less than residual does ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[ours[most], plain[least]], worse=[plain[most], ours[least]]))
    return outcomes


def draw(results: Results) -> Charts:
    for setting in results.size.settings():
        yield from loss_over_blocks(results, setting)
        yield from loss_over_blocks(results, setting, training=True)


STUDY = Study(
    name="fixed_flops",
    title="Width against depth at fixed computation",
    question="At constant MACs, how deep and narrow can a residual network be before it gets worse, and a StepsNet? (Table 5b)",
    rule=RULE,
    sizes={
        "quick": Size(tuple(arms(DIGITS)), (0, 1), "20 cells, about 5 core-minutes"),
        "full": Size((*arms(GUTENBERG), *arms(CIFAR10)), (0, 1, 2), "60 cells, about 6 core-hours"),
        "paper": Size(tuple(paper_arms()), (0, 1, 2), "45 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide,
    draw=draw,
    equal_cost=lambda arm: arm.setting.key,
)
