"""What charts are made of: colours, axes with ticks, numbers as text, SVG elements.

A colour is the name of a CSS class. The class sets `color` for light and dark pages (`COLOR_STYLE`), and shapes are
drawn in `currentColor`. A chart inside a page takes the page's style sheet; a chart in a file of its own carries the
rules with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import TypeGuard

COLORS = {
    "paper": ("#ffffff", "#14181f"), "panel": ("#f6f7f9", "#1d232d"), "grid": ("#e4e7ec", "#2c3340"),
    "ink": ("#1d2330", "#e6e9ef"), "faint": ("#667085", "#98a2b3"),
    "c0": ("#b4462f", "#f0836b"), "c1": ("#2b6cb0", "#6cb2f7"), "c2": ("#12806a", "#3fc9a6"),
    "c3": ("#8250a8", "#c79cf0"), "c4": ("#a8740a", "#e0b040"), "c5": ("#4a5568", "#a9b4c6"),
    "t0": ("#a3b1c6", "#52658a"), "t1": ("#6d8bb8", "#86a8dd"), "t2": ("#1c3d73", "#dbe8ff"),
    "old": ("#2b6cb0", "#3d86d6"), "new": ("#93bde6", "#a9d0f7"), "empty": ("#dde4ee", "#333d4d"),
    "severe": ("#b42318", "#ff8a7a"), "warning": ("#a65708", "#f0b45a"),
    "note": ("#475467", "#a9b4c6"), "good": ("#12806a", "#3fc9a6"),
}  # fmt: skip


def _rules(at: int) -> str:
    return "".join(f".{name}{{color:{colors[at]}}}" for name, colors in COLORS.items())


COLOR_STYLE = f"{_rules(0)}\n@media (prefers-color-scheme: dark) {{ {_rules(1)} }}"

SERIES = ("c0", "c1", "c2", "c3", "c4", "c5")
"""In this order where a chart has several lines. Lightness and hue differ, for colour-blind readers and print."""
RESIDUAL, STEPS, MATCHED = SERIES[:3]
"""The residual network, StepsNet (Eq. 5), StepsNet with matched joins: the same in every chart."""
TRAINING, VALIDATION, OTHER = SERIES[5], SERIES[3], SERIES[4]
"""The curves of one run."""
TIMES = ("t0", "t1", "t2")
"""The same quantity before training, early and late: one hue of growing contrast."""

_HEAT = ("#440154", "#472c7a", "#3b518b", "#2c718e", "#21908d", "#27ad81", "#5cc863", "#aadc32", "#fde725")  # viridis

FONT = 13  # pixels
LETTER = 0.56 * FONT  # mean width of a letter
ROW = 19  # height of a line of text
SLACK = 0.02  # of a tick's step: a value may lie so far outside the axis, less than a pixel


@dataclass(frozen=True)
class Axis:
    """Values `low` to `high` at the pixels `start` to `end`. `whole`: ticks at whole numbers only."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    start: float = 0.0
    end: float = 1.0

    @staticmethod
    def over(values: Sequence[float], *, log: bool = False, whole: bool = False, rounded: bool = False) -> Axis:
        """The axis that shows all values; `rounded`, from tick to tick."""
        low, high = min(values), max(values)
        if log:
            margin = max((high / low) ** 0.04, 1.02)
            return Axis(low / margin, high * margin, log, whole)
        if high == low:
            margin = abs(low) / 2 or 0.5
            low, high = low - margin, high + margin
        for _ in range(3 if rounded else 0):  # a wider range may have larger steps
            step = tick_step(low, high, 5)
            low, high = math.floor(low / step + SLACK) * step, math.ceil(high / step - SLACK) * step
        return Axis(low, high, log, whole)

    def between(self, start: float, end: float) -> Axis:
        return replace(self, start=start, end=end)

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """About that many round numbers inside the axis."""
        if self.log:
            found = _log_ticks(self.low, self.high, about)
            if len(found) > 1:
                return found
        step = tick_step(self.low, self.high, about)
        if self.whole:
            step = max(1.0, math.ceil(step))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def tick_step(low: float, high: float, about: int) -> float:
    """A round number of which about that many fit between low and high."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    """1, 2, 5, 10, … over few powers of ten; over many only every so many powers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(found) <= about + 3:
            return found
    return found[:: math.ceil(len(found) / about)]


def known(value: float | None, *, positive: bool = False) -> TypeGuard[float]:
    """Whether a value can be drawn."""
    return value is not None and math.isfinite(value) and (value > 0 or not positive)


def number(value: float) -> str:
    """A number as an axis shows it: 0.25, 12, 3,000, 2 M, 2e-06."""
    if value == 0:
        return "0"
    if 1e6 <= abs(value) < 1e9:
        return f"{value / 1e6:.3g} M"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def short(value: float | None) -> str:
    """A measured number with four digits; "not finite" for one that JSON keeps as null."""
    return number(float(f"{value:.4g}")) if known(value) else "not finite"


def alike(values: Sequence[float | None]) -> list[str]:
    """Numbers to be compared, with as many decimals as show three digits of the largest; "" for what is not finite."""
    largest = max((abs(value) for value in values if known(value)), default=0.0)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest else 0
    return [f"{value:z,.{decimals}f}" if known(value) else "" for value in values]


def binned(x: Sequence[float], y: Sequence[float | None], bins: int = 150) -> tuple[list[float], list[float | None]]:
    """Means over at most `bins` equal runs of neighbours, for noisy curves of any length."""
    size = max(1, math.ceil(len(x) / bins))
    means: list[tuple[float, float | None]] = []
    for start in range(0, len(x), size):
        found = [value for value in y[start : start + size] if known(value)]
        piece = x[start : start + size]
        means.append((sum(piece) / len(piece), sum(found) / len(found) if found else None))
    return [at for at, _ in means], [value for _, value in means]


def edges(centres: Sequence[float], *, outside: bool) -> list[float]:
    """The borders of cells, half-way between neighbouring centres; the outer ones at the last centres or `outside`."""
    middles = [(left + right) / 2 for left, right in pairwise(centres)]
    if not outside and middles:
        return [centres[0], *middles, centres[-1]]
    first = middles[0] - centres[0] if middles else 0.5
    last = centres[-1] - middles[-1] if middles else 0.5
    return [centres[0] - first, *middles, centres[-1] + last]


def heat(share: float) -> str:
    """The colour of a value between 0 (dark) and 1 (light)."""
    place = share * (len(_HEAT) - 1)
    index = min(int(place), len(_HEAT) - 2)
    one, other = (tuple(int(color[at : at + 2], 16) for at in (1, 3, 5)) for color in _HEAT[index : index + 2])
    mixed = (round(a + (place - index) * (b - a)) for a, b in zip(one, other, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def width_of(words: str) -> float:
    """About how many pixels a text takes; fonts differ, and this is not less than what the usual ones need."""
    narrow, wide = sum(map(words.count, " fijlrtI.,:;'()|")), sum(map(words.count, "mwMW%×→"))
    return FONT * (0.65 * len(words) - 0.25 * narrow + 0.36 * wide)


def image(width: float, height: float, parts: Sequence[str], label: str) -> str:
    """An image of that many pixels, which shrinks with the window."""
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="{escape(label)}" style="max-width:100%;height:auto" font-family="system-ui,sans-serif" '
        f'font-size="{FONT}">\n{inside}\n</svg>'
    )


def text(x: float, y: float, words: str, color: str, anchor: str = "start", size: int = FONT) -> str:
    own_size = f' font-size="{size}"' if size != FONT else ""
    place = f'x="{x:.1f}" y="{y:.1f}" fill="currentColor" text-anchor="{anchor}"{own_size}'
    return f'<text class="{color}" {place}>{escape(words)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, color: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{color}" {place} stroke="currentColor"{dashes}/>'


def box(x: float, y: float, width: float, height: float, color: str, tip: str = "") -> str:
    inside = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{color}" {place} fill="currentColor"{inside}'
