"""Looks at models from outside, through hooks: no model's forward carries recording code."""

from stepsnet.analysis.recorder import GammaRecorder
from stepsnet.analysis.shortcut import ShortcutRatio, shortcut_ratio

__all__ = ["GammaRecorder", "ShortcutRatio", "shortcut_ratio"]
