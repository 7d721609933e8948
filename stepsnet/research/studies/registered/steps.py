"""The number of steps (Table 8)."""

from __future__ import annotations

from stepsnet.research.studies.charts import Charts, loss_over_blocks
from stepsnet.research.studies.networks import in_steps
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.rules import RULE, Outcome, contrast
from stepsnet.research.studies.settings import CIFAR10, DIGITS, IMAGENET_DEIT
from stepsnet.research.studies.study import Arm, Size, Study

MOST = 5


def paper_arm(number: int) -> Arm:
    label = "1 step (residual)" if number == 1 else f"{number} steps"
    return Arm(IMAGENET_DEIT, f"{number}steps", 6 + 6 * number, ("model=deit_small", f"plan={number}"), label)


def decide(results: Results) -> list[Outcome]:
    outcomes = []
    for setting in results.size.settings():
        keys = {int(arm.network[0]): arm.key for arm in results.size.of(setting)}
        for many, few in ((2, 1), (3, 1), (5, 1), (5, 3)):
            sentence = f"{many} steps beat {few} ({setting.key})"
            outcomes.append(contrast(results, sentence, better=[keys[many]], worse=[keys[few]]))
    return outcomes


def draw(results: Results) -> Charts:
    for setting in results.size.settings():
        yield from loss_over_blocks(results, setting, one_line="1 to 5 steps")


STUDY = Study(
    name="steps",
    title="The number of steps",
    question="Is a network better when the same computation is cut into more steps, each deeper and narrower? (Table 8)",
    rule=RULE,
    sizes={
        "quick": Size(tuple(in_steps(DIGITS, number) for number in range(1, MOST + 1)), (0, 1, 2), "15 cells, about 3 core-minutes"),
        "full": Size(tuple(in_steps(CIFAR10, number) for number in range(1, MOST + 1)), (0, 1, 2), "15 cells, about 1 core-hour"),
        "paper": Size(tuple(paper_arm(number) for number in range(1, MOST + 1)), (0, 1, 2), "15 runs of 300 epochs on ImageNet-1K"),
    },
    decide=decide,
    draw=draw,
    equal_cost=lambda arm: arm.setting.key,
)
