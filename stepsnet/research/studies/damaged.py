"""The trained Steps models that `paths` and `drops` look at: three steps, the same runs as in `steps`."""

from __future__ import annotations

from stepsnet.research.studies.networks import in_steps
from stepsnet.research.studies.settings import CIFAR10, DIGITS, IMAGENET_DEIT
from stepsnet.research.studies.study import Arm, Size

SIZES = {
    "quick": Size((in_steps(DIGITS, 3),), (0, 1, 2), "the 3 cells of steps that have three steps, under a core-minute"),
    "full": Size((in_steps(CIFAR10, 3),), (0, 1, 2), "the 3 cells of steps that have three steps"),
    "paper": Size((Arm(IMAGENET_DEIT, "3steps", 24, ("model=deit_small", "plan=3"), "3 steps"),), (0, 1, 2), "3 runs of 300 epochs"),
}
