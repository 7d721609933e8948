"""Looks at models from outside, through hooks: no model's forward carries recording code."""

from stepsnet.analysis.find import FoundStack, find_blocks
from stepsnet.analysis.gradients import GradientFlow, gradient_flow
from stepsnet.analysis.recorder import GammaRecorder
from stepsnet.analysis.shortcut import ShortcutRatio, shortcut_ratio

__all__ = ["FoundStack", "GammaRecorder", "GradientFlow", "ShortcutRatio", "find_blocks", "gradient_flow", "shortcut_ratio"]
