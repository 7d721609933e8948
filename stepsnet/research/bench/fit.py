"""The exponent of a power law, by least squares in logarithms, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepsnet.errors import UsageError


@dataclass(frozen=True)
class PowerLaw:
    """y ≈ factor · x^exponent; `error` is the standard error of the exponent, 0 where two points leave none to estimate."""

    exponent: float
    error: float
    factor: float

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> PowerLaw:
        if len(set(x)) < 2 or len(x) != len(y) or min(*x, *y) <= 0:
            raise UsageError(f"a power law needs positive values at two places at least, not {list(y)} at {list(x)}")
        u, v = [math.log(value) for value in x], [math.log(value) for value in y]
        mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
        spread = sum((value - mean_u) ** 2 for value in u)
        slope = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / spread
        intercept = mean_v - slope * mean_u
        left = sum((b - intercept - slope * a) ** 2 for a, b in zip(u, v, strict=True))
        error = math.sqrt(left / (len(u) - 2) / spread) if len(u) > 2 else 0.0
        return cls(slope, error, math.exp(intercept))
