"""Exponents of data that were made with known ones."""

from __future__ import annotations

import pytest

from stepsnet.errors import UsageError
from stepsnet.research.bench.fit import PowerLaw


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_an_exact_law_is_found_exactly(exponent: float) -> None:
    x = [12, 24, 48, 96]
    law = PowerLaw.fit(x, [3.0 * value**exponent for value in x])
    assert law.exponent == pytest.approx(exponent)
    assert law.factor == pytest.approx(3.0)
    assert law.error == pytest.approx(0.0, abs=1e-6)


def test_scatter_shows_as_error() -> None:
    """Residuals of ±ln 1.1 in turns: the slope's standard error is √(4·ln²1.1 / 2 / Σ(u-ū)²) with u = 0, ln 2, 2 ln 2, 3 ln 2."""
    law = PowerLaw.fit([1, 2, 4, 8], [1.1, 2 / 1.1, 4 * 1.1, 8 / 1.1])
    assert law.exponent == pytest.approx(1.0, abs=0.1)
    assert 0.05 < law.error < 0.15


def test_two_points_leave_no_error_to_estimate() -> None:
    assert PowerLaw.fit([1, 2], [1, 4]).error == 0.0


@pytest.mark.parametrize(("x", "y"), [([1, 1], [1, 2]), ([1, 2], [0, 1]), ([1, 2], [1, 2, 3])])
def test_what_has_no_exponent_is_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(UsageError, match="power law"):
        PowerLaw.fit(x, y)
