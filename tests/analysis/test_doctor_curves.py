"""Findings of the doctor from the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stepsnet.analysis.doctor.curves import check_curves
from stepsnet.analysis.doctor.measure import Traits

Lines = Sequence[dict[str, Any]]
Curve = Callable[[int], float | None]


def lines(loss: Curve, norm: Curve = lambda _: 1.0, count: int = 200) -> list[dict[str, Any]]:
    return [{"step": step, "loss": loss(step), "grad_norm": norm(step)} for step in range(1, count + 1)]


def falling(step: int) -> float:
    return 2.0 * 0.99**step


def names(metrics: Lines = (), evaluations: Lines = ()) -> dict[str, str]:
    return {found.name: found.severity for found in check_curves(metrics, evaluations, (), clip=1.0, traits=Traits())}


def test_a_falling_loss_has_no_findings() -> None:
    assert names(lines(falling), [{"step": 100, "loss": 1.0}, {"step": 200, "loss": 0.9}]) == {}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (lines(lambda step: 2.3), {"loss-not-falling": "severe"}),
        (lines(lambda step: falling(step) if step < 150 else 1.5), {"loss-rising": "warning"}),
        (lines(lambda step: None if step == 77 else falling(step)), {"training-not-finite": "severe"}),
        (lines(falling, lambda step: None if step == 80 else 1.0), {"training-not-finite": "severe"}),
        (lines(falling, lambda step: 40.0 if step == 120 else 1.0), {"gradient-spikes": "note"}),
        (lines(falling, lambda step: 40.0 if step % 40 == 0 else 1.0), {"gradient-spikes": "warning"}),
        (lines(falling, lambda step: 25.0), {"clipping-dominates": "note"}),
        (lines(lambda step: 2.3, count=10), {}),
    ],
)
def test_curves_and_their_findings(metrics: list[dict[str, Any]], expected: dict[str, str]) -> None:
    assert names(metrics) == expected


def test_a_finding_names_the_step() -> None:
    (found,) = check_curves(
        lines(lambda step: None if step == 77 else falling(step)), (), (), clip=1.0, traits=Traits()
    )
    assert "first at step 77" in found.what


def test_a_validation_loss_that_rises_is_noted() -> None:
    rising = [{"step": 100, "loss": 1.0}, {"step": 200, "loss": 0.8}, {"step": 300, "loss": 0.9}]
    assert names(evaluations=rising) == {"validation-rises": "note"}


def test_the_lowest_recorded_gamma_is_reported() -> None:
    recorded = [{"step": step, "gamma": [gamma] * 48} for step, gamma in ((0, 1.0), (20, 0.03), (100, 0.1), (200, 0.5))]
    (found,) = check_curves((), (), recorded, clip=1.0, traits=Traits())
    assert (found.name, found.severity, found.value) == ("shortcut-degraded-earlier", "severe", 0.03)
    assert "at step 20" in found.what


def test_without_clipping_spikes_advise_clipping() -> None:
    metrics = lines(falling, lambda step: 40.0 if step == 120 else 1.0)
    (found,) = check_curves(metrics, (), (), clip=0.0, traits=Traits())
    assert found.change == {"clip": "1.0"}


def test_an_earlier_low_gamma_in_a_shallow_network_is_a_note() -> None:
    recorded = [{"step": step, "gamma": [gamma] * 12} for step, gamma in ((0, 1.0), (20, 0.03), (200, 0.5))]
    (found,) = check_curves((), (), recorded, clip=1.0, traits=Traits())
    assert found.severity == "note"


@pytest.mark.parametrize(
    ("steps", "words"), [((120,), "spikes once, to 40 times"), ((120, 180), "spikes 2 times, to 40 times")]
)
def test_spikes_are_counted_in_words(steps: tuple[int, ...], words: str) -> None:
    metrics = lines(falling, lambda step: 40.0 if step in steps else 1.0)
    (found,) = check_curves(metrics, (), (), clip=1.0, traits=Traits())
    assert words in found.what
