"""What many timings come to: a median and the quartiles around it, and how the timings of two contenders compare round by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and the range that holds the middle half of them."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


def speed_ratios(reference: Sequence[float], own: Sequence[float]) -> list[float]:
    """How many times as fast as the reference, round by round: what slows a whole round down slows both, and cancels."""
    return [theirs / ours for theirs, ours in zip(reference, own, strict=True)]
