"""Networks made deeper and wider, and the fitted exponents."""

from __future__ import annotations

import pytest

from stepsnet.errors import UsageError
from stepsnet.research.bench import run_growth, run_rows
from stepsnet.research.bench.growth import PowerLaw, with_depth, with_width


def test_every_step_is_deepened_alike() -> None:
    assert with_depth("test_steps_deit", 24).plan == "16x12, 22x6, 32x6"


def test_stages_are_deepened_alike() -> None:
    assert with_depth("test_swin", 14).plan == "6x4; 12x2; 24x4; 48x4"


def test_a_depth_out_of_proportion_is_refused() -> None:
    refusal = "has 8 blocks in its plan, which cannot be scaled to 10 blocks; multiples of 4 are possible"
    with pytest.raises(UsageError, match=refusal):
        with_depth("test_steps_deit", 10)
    assert with_depth("test_steps_deit", 12).plan == "16x6, 22x3, 32x3"


def test_every_step_is_widened_alike() -> None:
    assert with_width("test_steps_deit", 64).plan == "32x4, 44x2, 64x2"


def test_bytes_and_macs_grow_with_the_expected_exponents() -> None:
    document = run_growth(["test_deit"], depths=(4, 8, 16), widths=(64, 128, 256), batch=1, rounds=1)
    depth, width = document["series"]
    assert (depth["varies"], width["varies"]) == ("depth", "width")
    assert depth["laws"]["memory"]["exponent"] == pytest.approx(1.0, abs=0.05)
    assert width["laws"]["memory"]["exponent"] == pytest.approx(1.0, abs=0.05)
    assert width["laws"]["macs"]["exponent"] == pytest.approx(2.0, abs=0.1)
    assert [point["at"] for point in depth["points"]] == [4, 8, 16]


def test_an_impossible_size_is_refused_before_anything_is_timed() -> None:
    timed: list[None] = []
    with pytest.raises(UsageError, match="cannot be scaled to 10"):
        run_growth(["test_deit", "test_steps_deit"], depths=(10,), widths=(), rounds=1, tick=lambda: timed.append(None))
    assert not timed


def test_no_widths_leave_that_direction_out() -> None:
    document = run_growth(["test_deit"], depths=(4, 8), widths=(), batch=1, rounds=1)
    assert [series["varies"] for series in document["series"]] == ["depth"]


def test_lines_of_registered_models_against_their_blocks() -> None:
    rows: dict[str, list[tuple[str, float | None]]] = {
        "DeiT": [("test_deit", 70.0)],
        "Steps-DeiT": [("test_steps_deit", None)],
    }
    document = run_rows(rows, batch=1, rounds=1)
    points = [(series["label"], series["points"][0]) for series in document["series"]]
    assert [(label, point["at"], point["accuracy"]) for label, point in points] == [
        ("DeiT", 4, 70.0),
        ("Steps-DeiT", 8, None),
    ]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_an_exact_law_is_found_exactly(exponent: float) -> None:
    x = [12, 24, 48, 96]
    law = PowerLaw.fit(x, [3.0 * value**exponent for value in x])
    assert law.exponent == pytest.approx(exponent)
    assert law.factor == pytest.approx(3.0)
    assert law.error == pytest.approx(0.0, abs=1e-6)


def test_scatter_shows_as_error() -> None:
    """Residuals of ±ln 1.1 in turns: the error of the slope is √(4·ln²1.1 / 2 / Σ(u-ū)²) with u = 0 … 3 ln 2."""
    law = PowerLaw.fit([1, 2, 4, 8], [1.1, 2 / 1.1, 4 * 1.1, 8 / 1.1])
    assert law.exponent == pytest.approx(1.0, abs=0.1)
    assert 0.05 < law.error < 0.15


def test_two_points_leave_no_error_to_estimate() -> None:
    assert PowerLaw.fit([1, 2], [1, 4]).error == 0.0


@pytest.mark.parametrize(("x", "y"), [([1, 1], [1, 2]), ([1, 2], [0, 1]), ([1, 2], [1, 2, 3])])
def test_what_has_no_exponent_is_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(UsageError, match="power law"):
        PowerLaw.fit(x, y)
