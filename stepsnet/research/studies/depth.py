"""Studies of deep networks: at fixed width (Table 5a, Figures 1 and 2) and at fixed MACs (Table 5b)."""

from __future__ import annotations

from stepsnet.research.studies.networks import (
    CIFAR10,
    COLORS,
    DIGITS,
    GUTENBERG,
    IMAGENET_DEIT,
    IMAGENET_SWIN,
    JOINS,
    LABELS,
    PLANS,
    REMEDIES,
    planned,
    remedy,
    residual,
    steps,
)
from stepsnet.research.studies.pages import Charts, gammas, loss_over_blocks
from stepsnet.research.studies.results import RULE, Outcome, Results, contrast
from stepsnet.research.studies.study import Arm, Setting, Size, Study

SEEDS = (0, 1, 2)
TWO = (GUTENBERG, CIFAR10)
# At fixed MACs: all of one setting have the MACs of its 64x48 (digits: 32x24), with the nearest even widths.
FLOPS_WIDTHS = {
    GUTENBERG.key: {12: 138, 24: 94, 48: 64, 96: 42},
    CIFAR10.key: {12: 130, 24: 92, 48: 64, 96: 44},
    DIGITS.key: {6: 66, 12: 46, 24: 32, 48: 22},
}
FLOPS_PLANS = {
    GUTENBERG.key: {
        24: "68x12, 94x6, 134x6", 48: PLANS[GUTENBERG.key][48], 96: "12x24, 16x12, 22x12, 32x12, 44x12, 62x12, 88x12",
    },
    CIFAR10.key: {
        24: "64x12, 92x6, 128x6", 48: PLANS[CIFAR10.key][48], 96: "12x24, 16x12, 22x12, 32x12, 46x12, 64x12, 90x12",
    },
    DIGITS.key: {
        12: "32x6, 46x3, 66x3", 24: PLANS[DIGITS.key][24], 48: "6x12, 8x6, 12x6, 16x6, 22x6, 32x6, 44x6",
    },
}  # fmt: skip
COMPARED = ("residual", "steps", "matched")


def paper_arm(setting: Setting, name: str, blocks: int, model: str, *words: str) -> Arm:
    return Arm(setting, name, blocks, (f"model={model}", *words), LABELS[name], COLORS[name])


def width_arms(setting: Setting, blocks: int, remedies: tuple[str, ...] = REMEDIES) -> list[Arm]:
    ours = [residual(setting, blocks), steps(setting, blocks), steps(setting, blocks, "matched")]
    return [*ours, *(remedy(setting, blocks, name) for name in remedies)]


def width_paper_arms(blocks: int) -> list[Arm]:
    plain, cut = f"deit_deep_d{blocks}", f"steps_deit_deep_d{blocks}"
    remedies = REMEDIES if blocks in (24, 48, 96) else ()
    return [
        paper_arm(IMAGENET_DEIT, "residual", blocks, plain),
        paper_arm(IMAGENET_DEIT, "steps", blocks, cut),
        paper_arm(IMAGENET_DEIT, "matched", blocks, cut, "join=matched"),
        *(paper_arm(IMAGENET_DEIT, name, blocks, plain, f"model_args.residual={name}") for name in remedies),
    ]


def decide_width(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        depths = sorted({arm.blocks for arm in results.size.of(setting)})
        least, most = depths[0], depths[-1]

        def at(network: str, blocks: int = most, data: str = setting.key) -> str:
            return f"{data}-{network}-{blocks}"

        where = f"{setting.key}, {most} blocks"
        pairs = [
            ("Steps beats residual", "steps", "residual"),
            ("Matched joins beat plain joins", "matched", "steps"),
            *((f"Matched Steps beats {LABELS[name]}", "matched", name) for name in REMEDIES if results.arm(at(name))),
        ]
        for sentence, better, worse in pairs:
            outcomes.append(contrast(results, f"{sentence} ({where})", better=[at(better)], worse=[at(worse)]))
        sentence = f"From {least} to {most} blocks, matched Steps gains more than residual does ({setting.key})"
        better_keys, worse_keys = [at("matched"), at("residual", least)], [at("residual"), at("matched", least)]
        outcomes.append(contrast(results, sentence, better=better_keys, worse=worse_keys))
    return outcomes


def draw_width(results: Results) -> Charts:
    for setting in results.size.settings():
        deepest = max(arm.blocks for arm in results.size.of(setting))
        yield from loss_over_blocks(results, setting)
        yield from loss_over_blocks(results, setting, training=True)
        yield from gammas(results, setting, [arm for arm in results.size.of(setting) if arm.blocks == deepest])


FIXED_WIDTH = Study(
    name="fixed_width",
    title="Going deeper at fixed width",
    question="At a fixed width and cost per block, does a residual network gain from more depth, does StepsNet, and is "
    "the gain larger than that of a cheap remedy? (Table 5a, Figures 1 and 2)",
    rule=RULE,
    sizes={
        "quick": Size((*width_arms(DIGITS, 24), *width_arms(DIGITS, 6)), (0, 1), "28 cells, about 5 core-minutes"),
        "long": Size(
            tuple(arm for blocks in (48, 12) for arm in width_arms(GUTENBERG, blocks, ("layerscale",))), SEEDS,
            "24 cells, about 1.5 core-hours",
        ),
        "full": Size(
            tuple(arm for data in TWO for blocks in (96, 48, 24, 12) for arm in width_arms(data, blocks)), SEEDS,
            "168 cells, about 12 core-hours; those of long are among them",
        ),
        "paper": Size(
            tuple(arm for blocks in (24, 36, 48, 72, 96) for arm in width_paper_arms(blocks)), SEEDS,
            "81 runs of 300 epochs on ImageNet-1K",
        ),
    },
    decide=decide_width,
    draw=draw_width,
)  # fmt: skip


def flops_arms(setting: Setting) -> list[Arm]:
    found = [residual(setting, blocks, width) for blocks, width in FLOPS_WIDTHS[setting.key].items()]
    for name in ("steps", "matched"):
        for blocks, plan in FLOPS_PLANS[setting.key].items():
            known = name if plan == PLANS[setting.key].get(blocks) else f"{name}_flops"
            found.append(planned(setting, known, plan, LABELS[name], COLORS[name], join=JOINS[name]))
    return found


def flops_paper_arms() -> list[Arm]:
    plain = {12: "swin_tiny"} | {blocks: f"swin_deep_d{blocks}" for blocks in (24, 48, 72, 96)}
    cut = {26: "steps_swin_tiny"} | {blocks: f"steps_swin_deep_d{blocks}" for blocks in (14, 48, 64, 96)}
    ordered = sorted(cut.items())
    return [
        *(paper_arm(IMAGENET_SWIN, "residual", blocks, model) for blocks, model in plain.items()),
        *(paper_arm(IMAGENET_SWIN, "steps", blocks, model) for blocks, model in ordered),
        *(paper_arm(IMAGENET_SWIN, "matched", blocks, model, "join=matched") for blocks, model in ordered),
    ]


def decide_flops(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        arms = results.size.of(setting)
        plain, cut, matched = (
            {arm.blocks: arm.key for arm in arms if arm.label == LABELS[label]} for label in COMPARED
        )
        common = sorted(plain.keys() & cut.keys())
        least, most, second = common[0], common[-1], sorted(plain)[1]
        where = f"{setting.key}, {most} blocks"
        narrow = f"The residual network of {most} blocks is worse than that of {second} ({setting.key})"
        outcomes += [
            contrast(results, narrow, better=[plain[second]], worse=[plain[most]]),
            contrast(results, f"Steps beats residual ({where})", better=[cut[most]], worse=[plain[most]]),
            contrast(results, f"Matched Steps beats residual ({where})", better=[matched[most]], worse=[plain[most]]),
        ]
        for label, ours in (("Steps", cut), ("matched Steps", matched)):
            sentence = f"From {least} to {most} blocks, {label} loses less than residual does ({setting.key})"
            better, worse = [ours[most], plain[least]], [plain[most], ours[least]]
            outcomes.append(contrast(results, sentence, better=better, worse=worse))
    return outcomes


def draw_flops(results: Results) -> Charts:
    for setting in results.size.settings():
        yield from loss_over_blocks(results, setting)
        yield from loss_over_blocks(results, setting, training=True)


FIXED_FLOPS = Study(
    name="fixed_flops",
    title="Width against depth at fixed computation",
    question="At constant MACs, how deep and narrow can a residual network be before it gets worse, and a StepsNet? "
    "(Table 5b)",
    rule=RULE,
    sizes={
        "quick": Size(tuple(flops_arms(DIGITS)), (0, 1), "20 cells, about 5 core-minutes"),
        "full": Size((*flops_arms(GUTENBERG), *flops_arms(CIFAR10)), SEEDS, "60 cells, about 6 core-hours"),
        "paper": Size(tuple(flops_paper_arms()), SEEDS, "45 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide_flops,
    draw=draw_flops,
    equal_cost=lambda arm: arm.setting.key,
)


STUDIES = {study.name: study for study in (FIXED_WIDTH, FIXED_FLOPS)}
