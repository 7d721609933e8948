"""Measurements inside models by hooks; no model has recording code in its forward pass."""

from stepsnet.analysis.contribution import StepContribution, WidthUse, step_contribution, width_use
from stepsnet.analysis.doctor import Diagnosis, diagnose
from stepsnet.analysis.find import FoundStack, find_blocks
from stepsnet.analysis.gradients import GradientFlow, gradient_flow
from stepsnet.analysis.paths import DroppedBlocks, MaskedPaths, drop_blocks, mask_paths
from stepsnet.analysis.shortcut import GammaRecorder, ShortcutRatio, shortcut_ratio

__all__ = [
    "Diagnosis",
    "DroppedBlocks",
    "FoundStack",
    "GammaRecorder",
    "GradientFlow",
    "MaskedPaths",
    "ShortcutRatio",
    "StepContribution",
    "WidthUse",
    "diagnose",
    "drop_blocks",
    "find_blocks",
    "gradient_flow",
    "mask_paths",
    "shortcut_ratio",
    "step_contribution",
    "width_use",
]
