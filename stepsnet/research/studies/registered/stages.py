"""Which stages of a Swin to cut into steps (Table 11)."""

from __future__ import annotations

from stepsnet.report import svg
from stepsnet.research.studies.charts import gains_over_the_first
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.rules import RULE, Outcome, contrast
from stepsnet.research.studies.settings import CIFAR10_SWIN, DIGITS_SWIN, IMAGENET_SWIN
from stepsnet.research.studies.study import Arm, Setting, Size, Study

PLAIN = (2, 2, 6, 2)
# Stage 4 in steps ends √2 narrower, as the paper's does (Table 14): only so is its cost that of two blocks of full width.
CUT = {
    16: ("12x2, 16x1", "22x2, 32x1", "32x6, 46x3, 64x3", "32x4, 46x2, 64x2, 90x2"),
    32: ("22x2, 32x1", "46x2, 64x1", "64x6, 90x3, 128x3", "64x4, 90x2, 128x2, 180x2"),
    96: ("68x2, 96x1", "136x2, 192x1", "192x6, 272x3, 384x3", "192x4, 272x2, 384x2, 544x2"),
}
CHOICES = {"none": (), "stage 1": (0,), "stage 2": (1,), "stage 3": (2,), "stage 4": (3,), "stages 3 and 4": (2, 3)}


def arms(setting: Setting, base: int) -> tuple[Arm, ...]:
    found = []
    for label, cut in CHOICES.items():
        stages = [CUT[base][stage] if stage in cut else f"{base * 2**stage}x{PLAIN[stage]}" for stage in range(len(PLAIN))]
        blocks = sum(int(step.rpartition("x")[2]) for stage in stages for step in stage.split(","))
        name = "cut_" + "".join(str(stage + 1) for stage in cut) if cut else "residual"
        words = (f"plan={'; '.join(stages)}", f"model_args.embed_dim={base}")
        found.append(Arm(setting, name, blocks, words, label, svg.STEPS if cut else svg.RESIDUAL))
    return tuple(found)


def paper_arms() -> tuple[Arm, ...]:
    """The same, the two that other studies have as well under their names there."""
    known = {"residual": ("residual", ("model=swin_tiny",)), "cut_34": ("steps", ("model=steps_swin_tiny",))}
    found = []
    for arm in arms(IMAGENET_SWIN, 96):
        name, words = known.get(arm.network, (arm.network, ("model=swin_tiny", arm.words[0])))
        found.append(Arm(arm.setting, name, arm.blocks, words, arm.label, arm.color))
    return tuple(found)


def decide(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        plain, *others = results.size.of(setting)
        for arm in others:
            sentence = f"Steps in {arm.label} beat none ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[arm.key], worse=[plain.key]))
        *_, fourth, both = others
        sentence = f"Steps in {both.label} beat those in {fourth.label} alone ({setting.key})"
        outcomes.append(contrast(results, sentence, better=[both.key], worse=[fourth.key]))
    return outcomes


STUDY = Study(
    name="stages",
    title="Steps at different stages of Swin",
    question="Which stages of a network of four resolutions gain from steps? (Table 11)",
    rule=RULE,
    sizes={
        "quick": Size(arms(DIGITS_SWIN, 16), (0, 1, 2), "18 cells, about 3 core-minutes"),
        "full": Size(arms(CIFAR10_SWIN, 32), (0, 1, 2), "18 cells, about 2 core-hours"),
        "paper": Size(paper_arms(), (0, 1, 2), "18 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide,
    draw=gains_over_the_first,
    equal_cost=lambda arm: arm.setting.key,
)
