"""Decisions of comparisons, on made-up results."""

from __future__ import annotations

import math

import pytest

from stepsnet.research.studies import results as rules
from stepsnet.research.studies.ablations import DROPS, PATHS
from stepsnet.research.studies.depth import FIXED_WIDTH
from stepsnet.research.studies.results import Results, contrast, decide, paired
from stepsnet.research.studies.study import Cell, Size
from tests.research.studies import toy


@pytest.mark.parametrize(
    ("difference", "error", "verdict"),
    [
        (0.1, 0.01, rules.HOLDS),
        (-0.1, 0.01, rules.REFUTED),
        (0.1, 0.06, rules.INCONCLUSIVE),
        (-0.1, 0.06, rules.INCONCLUSIVE),
        (0.019, 0.0001, rules.INCONCLUSIVE),
        (0.021, 0.0001, rules.HOLDS),
        (0.5, math.nan, rules.INCONCLUSIVE),
    ],
)
def test_the_rule(difference: float, error: float, verdict: str) -> None:
    assert decide("it is so", difference, error).verdict == verdict


def test_a_single_seed_is_shown_without_an_error() -> None:
    assert str(decide("it is so", 1.0, math.nan)) == "it is so: inconclusive (+1.000 nats, one seed)"


def test_a_contrast_compares_means_and_adds_squared_errors() -> None:
    found = toy.results({"a": [2.0, 2.2], "b": [1.0, 1.4]})
    outcome = contrast(found, "b beats a", better=["toy-b-2"], worse=["toy-a-2"])
    assert outcome.difference == pytest.approx(0.9)
    assert outcome.error == pytest.approx((0.1**2 + 0.2**2) ** 0.5)
    assert outcome.verdict == rules.HOLDS
    assert str(outcome) == "b beats a: holds (+0.900 ± 0.224 nats)"


@pytest.mark.parametrize(
    "losses", [{"a": [2.0, 2.0], "b": [1.0, None]}, {"a": [2.0, 2.0], "c": [1.0, 1.0]}], ids=["failed", "absent"]
)
def test_no_comparison_with_a_failed_or_missing_cell(losses: dict[str, list[float | None]]) -> None:
    assert contrast(toy.results(losses), "b beats a", better=["toy-b-2"], worse=["toy-a-2"]).verdict == rules.NOT_MADE


def test_a_difference_within_cells_is_judged_by_its_own_error() -> None:
    found = toy.results({"a": [1.0, 5.0, 9.0]})
    outcome = paired(found, "it grows", "toy-a-2", lambda cell: cell.loss / 100 + 1)
    assert outcome.difference == pytest.approx(1.05)
    assert outcome.error == pytest.approx(0.04 / 3**0.5)


def made_up_results(losses: dict[str, float], size: Size) -> Results:
    """Losses by arm, a little apart over seeds."""
    found = {}
    for cell in size.cells():
        if cell.arm.key in losses:
            found[cell.id] = toy.made_up(cell, losses[cell.arm.key] + 0.001 * cell.seed)
    return Results(size, found)


def test_fixed_width_decides_its_four_registered_hypotheses() -> None:
    size = FIXED_WIDTH.sizes["long"]
    losses = {
        "residual-48": 2.2,
        "steps-48": 2.9,
        "matched-48": 2.0,
        "layerscale-48": 2.01,
        "residual-12": 2.1,
        "matched-12": 2.08,
    }
    found = made_up_results({f"gutenberg-{key}": loss for key, loss in losses.items()}, size)
    verdicts = [outcome.verdict for outcome in FIXED_WIDTH.decide(found)]
    # Steps beats residual; matched beats plain joins; matched beats LayerScale (by 0.01 only); matched gains 0.08 and
    # residual loses 0.1.
    assert verdicts == [rules.REFUTED, rules.HOLDS, rules.INCONCLUSIVE, rules.HOLDS]
    assert FIXED_WIDTH.decide(found)[-1].difference == pytest.approx(0.18)


def test_fixed_width_skips_a_comparison_whose_cells_are_missing() -> None:
    size = FIXED_WIDTH.sizes["long"]
    found = made_up_results({"gutenberg-residual-48": 2.2, "gutenberg-steps-48": 2.9}, size)
    assert [outcome.verdict for outcome in FIXED_WIDTH.decide(found)] == [rules.REFUTED, *[rules.NOT_MADE] * 3]


def test_paths_compares_slow_with_fast_at_the_most_channels() -> None:
    size = PATHS.sizes["quick"]
    probe = {"loss": {"sizes": [0, 8, 16], "slow": [1.0, 1.1, 2.0], "fast": [1.0, 1.5, 1.4]}}
    found = Results(size, {cell.id: toy.made_up(cell, 1.0, paths=probe) for cell in size.cells()})
    (outcome,) = PATHS.decide(found)
    assert outcome.verdict == rules.HOLDS
    assert outcome.difference == pytest.approx(0.6)
    assert len(list(PATHS.tables(found))) == 1


def test_drops_compares_every_two_steps() -> None:
    size = DROPS.sizes["quick"]
    probe = {
        "loss": {
            "steps": ["none", "step 1", "step 2", "step 3"],
            "dropped": [0, 4, 2, 1],
            "share": [0, 0.1, 0.1, 0.1],
            "metric": [1.0, 2.0, 1.5, 1.8],
        }
    }
    found = Results(size, {cell.id: toy.made_up(cell, 1.0, drops=probe) for cell in size.cells()})
    assert [outcome.verdict for outcome in DROPS.decide(found)] == [rules.HOLDS, rules.HOLDS, rules.REFUTED]
    (table,) = DROPS.tables(found)
    assert table.rows[1][:2] == ["step 1", "4"]


def test_cells_of_one_arm_are_distinguished_by_their_seed() -> None:
    assert Cell(toy.arm("a"), 3).id == "toy-a-2-s3"
