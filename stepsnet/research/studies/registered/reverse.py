"""Narrow to wide, or wide to narrow (Table 10, Eq. 6)."""

from __future__ import annotations

from stepsnet.report import svg
from stepsnet.research.studies.charts import gains_over_the_first
from stepsnet.research.studies.networks import in_steps
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.rules import RULE, Outcome, contrast
from stepsnet.research.studies.settings import CIFAR10, DIGITS, IMAGENET_SWIN
from stepsnet.research.studies.study import Arm, Setting, Size, Study


def arms(setting: Setting) -> tuple[Arm, Arm, Arm]:
    plain, forward = in_steps(setting, 1), in_steps(setting, 3)
    return plain, forward, turned(forward)


def paper_arms() -> tuple[Arm, Arm, Arm]:
    plain = Arm(IMAGENET_SWIN, "residual", 12, ("model=swin_tiny",), "Swin-T", svg.RESIDUAL)
    forward = Arm(IMAGENET_SWIN, "steps", 26, ("model=steps_swin_tiny",), "Steps-Swin-T")
    return plain, forward, turned(forward)


def turned(forward: Arm) -> Arm:
    """The same plan, walked from its end."""
    words = (*forward.words, "macro=reverse")
    return Arm(forward.setting, f"{forward.network}_reverse", forward.blocks, words, f"{forward.label}, reversed", svg.OTHER)


def decide(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        plain, forward, reverse = results.size.of(setting)
        sentence = f"Narrow to wide beats wide to narrow ({setting.key})"
        outcomes.append(contrast(results, sentence, better=[forward.key], worse=[reverse.key]))
        sentence = f"Wide to narrow beats the plain network ({setting.key})"
        outcomes.append(contrast(results, sentence, better=[reverse.key], worse=[plain.key]))
    return outcomes


STUDY = Study(
    name="reverse",
    title="The reverse design",
    question="Do steps help because they go from narrow to wide, or would the same blocks from wide to narrow do as well? (Table 10)",
    rule=RULE,
    sizes={
        "quick": Size(arms(DIGITS), (0, 1, 2), "9 cells, 6 of them those of steps, about 2 core-minutes"),
        "full": Size(arms(CIFAR10), (0, 1, 2), "9 cells, 6 of them those of steps, about half a core-hour"),
        "paper": Size(paper_arms(), (0, 1, 2), "9 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide,
    draw=gains_over_the_first,
    equal_cost=lambda arm: arm.setting.key,
)
