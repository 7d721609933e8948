"""Where the computation goes (Table 9): three steps of widths C/2, C/√2 and C, more or less of it in the narrow ones."""

from __future__ import annotations

from stepsnet.research.studies.charts import Charts, gains_over_the_first, loss_over_blocks
from stepsnet.research.studies.networks import in_steps, planned
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.rules import RULE, Outcome, contrast
from stepsnet.research.studies.settings import CIFAR10, DIGITS, IMAGENET_DEIT
from stepsnet.research.studies.study import Arm, Setting, Size, Study

HALF = {(0, 0, 6): "1steps", (2, 1, 5): "", (4, 2, 4): "", (6, 3, 3): "3steps", (8, 4, 2): "", (10, 5, 1): ""}
WHOLE = {(0, 0, 12): "1steps", (2, 1, 11): "", (6, 3, 9): "", (12, 6, 6): "3steps", (18, 9, 3): "", (22, 11, 1): ""}
"""Depths (D1, D2, D3), and the name of the arm of `steps` that is the same network. The first is the plain one."""


def arms(setting: Setting, widths: tuple[int, int, int], allocations: dict[tuple[int, int, int], str]) -> list[Arm]:
    found = []
    for depths, known in allocations.items():
        name = "alloc_" + "_".join(map(str, depths))
        plan = ", ".join(f"{width}x{depth}" for width, depth in zip(widths, depths, strict=True))
        found.append(in_steps(setting, int(known[0])) if known else planned(setting, name, plan, _label(depths)))
    return [_named(arm, depths) for arm, depths in zip(found, allocations, strict=True)]


def paper_arms() -> list[Arm]:
    found = []
    for (d1, d2, d3), known in WHOLE.items():
        plan = known[0] if known else f"192x{d1}, 272x{d2}, 384x{d3}"
        words = ("model=deit_small", f"plan={plan}")
        found.append(Arm(IMAGENET_DEIT, known or f"alloc_{d1}_{d2}_{d3}", d1 + d2 + d3, words, _label((d1, d2, d3))))
    return found


def _label(depths: tuple[int, int, int]) -> str:
    return f"({', '.join(map(str, depths))})"


def _named(arm: Arm, depths: tuple[int, int, int]) -> Arm:
    return Arm(arm.setting, arm.network, arm.blocks, arm.words, _label(depths), arm.color)


def decide(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        plain, *others = results.size.of(setting)
        even = next(arm for arm in others if arm.network == "3steps")
        for arm in others:
            sentence = f"{arm.label} beats {plain.label} ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[arm.key], worse=[plain.key]))
        for arm in (others[0], others[-1]):
            sentence = f"{even.label} beats {arm.label} ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[even.key], worse=[arm.key]))
    return outcomes


def draw(results: Results) -> Charts:
    for setting in results.size.settings():
        yield from loss_over_blocks(results, setting, one_line="allocations, from all in the widest step to nearly none")
    yield from gains_over_the_first(results)


STUDY = Study(
    name="allocation",
    title="Computation allocated to narrow and wide steps",
    question="Of three steps of equal total cost, how much should be in the narrow, deep ones? (Table 9)",
    rule=RULE,
    sizes={
        "quick": Size(tuple(arms(DIGITS, (32, 46, 64), HALF)), (0, 1, 2), "18 cells, 6 of them those of steps, about 3 core-minutes"),
        "full": Size(tuple(arms(CIFAR10, (64, 90, 128), WHOLE)), (0, 1, 2), "18 cells, 6 of them those of steps, about 1 core-hour"),
        "paper": Size(tuple(paper_arms()), (0, 1, 2), "18 runs of 300 epochs on ImageNet-1K, 6 of them those of steps"),
    },
    decide=decide,
    draw=draw,
    equal_cost=lambda arm: arm.setting.key,
)
