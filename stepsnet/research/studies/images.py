"""Evidence on images: figure1_mini, table1_mini and convnet_mini, on CIFAR-10. `quick` is a trial on digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepsnet.report import svg
from stepsnet.research.studies.evidence import (
    DEEP,
    SEEDS,
    TRIAL_IMAGES,
    TRIAL_SEARCH,
    cifar,
    losses_over_depth,
    network,
    pairs,
    search,
    tuned_at,
)
from stepsnet.research.studies.networks import COLORS, DIGITS_WORDS, NARROW, WIDE
from stepsnet.research.studies.pages import Charts, differences, losses_over_training
from stepsnet.research.studies.results import RULE, Outcome, Results, contrast
from stepsnet.research.studies.study import Arm, Setting, Size, Study

NARROW_96 = "8x24, 12x12, 18x12, 22x12, 34x12, 44x12, 64x12"

# Figure 1 in small: loss over depth at fixed width. Here and in `convnet_mini`, `matched_grad` took the place of
# `matched` before any cell ran, when `joins` was complete on language and in part on images.


def figure1_arms(settings: Mapping[int, Setting], plans: Mapping[int, str], width: int) -> tuple[Arm, ...]:
    arms = []
    for blocks, setting in settings.items():
        plain = f"{width}x{blocks}"
        scaled = replace(network(setting, "residual", plain, "layerscale"), color=svg.OTHER)
        arms += [network(setting, "residual", plain), scaled]
        arms += [network(setting, name, plans[blocks]) for name in ("steps", "matched_grad")]
    return tuple(arms)


def vit_settings(key: str) -> dict[int, Setting]:
    """Under one key, so that all depths are in one chart."""
    about = "20 epochs (8 at 96 blocks)"
    return {blocks: cifar(key, 8 if blocks == 96 else 20, about=about) for blocks in (12, 24, 48, 96)}


def decide_figure1(results: Results) -> list[Outcome]:
    return pairs(results, (
        ("Steps beats residual", "steps", "residual"),
        ("Steps with matched_grad joins beats residual", "matched_grad", "residual"),
        ("Steps with matched_grad joins beats residual + LayerScale", "matched_grad", "residual_layerscale"),
    ))  # fmt: skip


FIGURE1_TRIAL = figure1_arms({6: TRIAL_IMAGES, 12: TRIAL_IMAGES}, NARROW, 32)
FIGURE1_SMALL = figure1_arms(vit_settings("vit32"), {**NARROW, 96: NARROW_96}, 32)
FIGURE1_FULL = figure1_arms(vit_settings("vit64"), WIDE, 64)
# Registered when seed 0 of `small` was known at 48 blocks: there `matched_grad` was the worst, at the largest rate.
FIGURE1_48 = tuple(arm for arm in FIGURE1_SMALL if arm.blocks == 48)
FIGURE1_MINI = Study(
    name="figure1_mini",
    title="Depth at fixed width, trained long",
    question="At fixed width, do residual networks, with LayerScale or without, and Steps networks of the same cost "
    "gain from depth in training and validation loss? (Figure 1)",
    rule=f"{RULE} Learning rates are chosen at 24 blocks and used at all depths; in `at48` they are chosen at 48.",
    sizes={
        "quick": Size(FIGURE1_TRIAL, (0, 1), "24 cells, core-minutes", tuned_at(6, FIGURE1_TRIAL, TRIAL_SEARCH)),
        "small": Size(
            FIGURE1_SMALL, SEEDS, "12 cells of the search and 48, at width 32",
            tuned_at(24, FIGURE1_SMALL, search(cifar("", 20))),
        ),
        "at48": Size(
            FIGURE1_48, SEEDS, "12 cells of the search and 12 of 48 blocks, some of them of small",
            search(cifar("", 20)),
        ),
        "full": Size(
            FIGURE1_FULL, SEEDS, "12 cells of the search and 48, at width 64",
            tuned_at(24, FIGURE1_FULL, search(cifar("", 20))),
        ),
    },
    decide=decide_figure1,
    draw=losses_over_depth,
)  # fmt: skip


# Table 1 in small: is a Steps transformer of two or four times the depth better than a residual one of the same cost?
# Registered when figure1_mini was known at 12 blocks, and with one seed at 48. Its networks of 48 blocks are those of
# `at48`.


def table1_arms(setting: Setting, plain: str, deep: str, cut: str) -> tuple[Arm, ...]:
    three = (network(setting, name, cut).renamed("_three") for name in ("steps", "matched_grad"))
    reference = replace(network(setting, "residual", deep), label=DEEP, color=svg.OTHER)
    return (network(setting, "residual", plain), *three, reference)


def decide_table1(results: Results) -> list[Outcome]:
    plain, *others = results.size.arms
    return [
        contrast(results, f"{arm.label}, {arm.blocks} blocks: beats residual", better=[arm.key], worse=[plain.key])
        for arm in others
    ]


def draw_table1(results: Results) -> Charts:
    plain, *others = results.size.arms
    yield from differences(results, plain.setting, plain.key, others)


TABLE1_48 = tuple(arm for arm in FIGURE1_48 if arm.network in ("steps", "matched_grad"))
TABLE1_MINI = Study(
    name="table1_mini",
    title="Vision transformers at equal cost, trained long",
    question="At equal cost, does a Steps transformer of two or four times the depth beat the residual one? (Table 1)",
    rule=RULE,
    sizes={
        "quick": Size(
            table1_arms(TRIAL_IMAGES, "32x6", "32x12", "16x6, 22x3, 32x3"), (0, 1), "20 cells, core-minutes",
            TRIAL_SEARCH,
        ),
        "full": Size(
            (*table1_arms(vit_settings("vit64")[24], "64x12", "64x24", "32x12, 46x6, 64x6"), *TABLE1_48), SEEDS,
            "18 cells of the search and 18, a third of them of figure1_mini", search(cifar("", 20)),
        ),
    },
    decide=decide_table1,
    draw=draw_table1,
    equal_cost=lambda arm: arm.label == DEEP,
)  # fmt: skip


# ResNet-18 in small


def resnet_arms(setting: Setting, width: int) -> tuple[Arm, ...]:
    """ResNet-18 and Steps-ResNet-18 at `width` channels instead of 64; blocks include those that open stages."""
    narrow = [round(width * 2 ** (i / 2)) for i in range(7)]  # C, √2 C … 8 C
    third = f"{narrow[0]}x2, {narrow[1]}x1, {narrow[2]}x1, {narrow[3]}x1, {narrow[4]}x0"
    fourth = f"{narrow[0]}x2, {', '.join(f'{each}x1' for each in narrow[1:6])}, {narrow[6]}x0"
    words = (f"model_args.embed_dim={width}",)
    cut = (*words, f"plan={narrow[0]}x1; {narrow[2]}x1; {third}; {fourth}")
    join = "matched_grad"
    return (
        Arm(setting, "residual", 8, words, "ResNet-18", COLORS["residual"]),
        Arm(setting, "steps", 18, cut, "Steps-ResNet-18", COLORS["steps"]),
        Arm(setting, join, 18, (*cut, f"join={join}"), "Steps-ResNet-18, matched_grad joins", COLORS[join]),
    )


def decide_convnet(results: Results) -> list[Outcome]:
    plain, steps, matched = (arm.key for arm in results.size.arms)
    return [
        contrast(results, "Steps-ResNet-18 beats ResNet-18", better=[steps], worse=[plain]),
        contrast(results, "Steps-ResNet-18 with matched_grad joins beats ResNet-18", better=[matched], worse=[plain]),
    ]


RESNET_CIFAR = cifar("resnet", 15, "model=resnet18")
# `cifar_stem` was registered when `full`, with ResNet's own stem, was known. Its rates are larger, because in `full`
# two of three networks chose the largest. It is trained in bf16 to save time.
RESNET_STEM = cifar(
    "resnet3x3", 15, "model=resnet18", "model_args.stem_stride=1", "precision=bf16", about="15 epochs in bf16, 3×3 stem"
)
STEM_RATES = (3e-3, 6e-3, 1.2e-2)
RESNET_TRIAL = replace(
    TRIAL_IMAGES, key="trialresnet", about="scikit-learn's digits, enlarged to 32×32, 60 steps of 32 images",
    words=("model=resnet18", "data.img_size=32", "iters=60", "schedule.warmup_iters=6", *DIGITS_WORDS),
    shape={"num_classes": 10, "in_chans": 1, "img_size": 32},
)  # fmt: skip
CONVNET_MINI = Study(
    name="convnet_mini",
    title="ResNet-18 at equal cost, trained long",
    question="Does Steps-ResNet-18 beat ResNet-18 at equal cost? (Table 1)",
    rule=RULE,
    sizes={
        "quick": Size(resnet_arms(RESNET_TRIAL, 8), (0, 1), "12 cells, core-minutes", TRIAL_SEARCH),
        "full": Size(resnet_arms(RESNET_CIFAR, 32), SEEDS, "9 cells of the search and 9", search(RESNET_CIFAR)),
        "cifar_stem": Size(
            resnet_arms(RESNET_STEM, 32), SEEDS, "9 cells of the search and 9, with the 3×3 stem usual for CIFAR-10",
            search(RESNET_STEM, STEM_RATES),
        ),
    },
    decide=decide_convnet,
    draw=losses_over_training,
    equal_cost=lambda arm: arm.setting.key,
)  # fmt: skip

STUDIES = {study.name: study for study in (FIGURE1_MINI, TABLE1_MINI, CONVNET_MINI)}
