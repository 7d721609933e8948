"""One set of colours for every figure; told apart in print and by colour-blind readers (lightness and hue both differ)."""

from __future__ import annotations

INK, FAINT, GRID, PAPER = "#1d2330", "#667085", "#e4e7ec", "#ffffff"

SERIES = ("#b4462f", "#2b6cb0", "#12806a", "#8250a8", "#a8740a", "#4a5568")
"""In this order where a figure has several lines."""

RESIDUAL, STEPS, MATCHED = SERIES[:3]
"""The plain residual network, StepsNet (Eq. 5), StepsNet with matched joins: the same in every figure."""

TRAINING, VALIDATION, OTHER = SERIES[5], SERIES[3], SERIES[4]
"""The curves of one run."""

TIMES = ("#b3bfd1", "#6d8bb8", "#1c3d73")
"""The same thing before training, early and late: one hue, growing darker."""

GOES_ON, JOINS, PASSES = "#2b6cb0", "#93bde6", "#eef2f7"
"""In the picture of a stack: channels of the step before, channels that join, channels without blocks."""
