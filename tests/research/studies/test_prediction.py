"""Whether early measurements order networks as their losses do, on made-up results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stepsnet.research.studies.prediction import BETTER, prediction_table
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.study import Cell
from tests.research.studies import toy


def line(step: int, gamma: float, findings: dict[str, str] | None = None) -> dict[str, Any]:
    return {"step": step, "numbers": dict.fromkeys(BETTER, 0.5) | {"gamma": gamma}, "findings": findings or {}}


def examined(losses: dict[str, list[float | None]], lines: dict[str, list[dict[str, Any]]]) -> Results:
    found = toy.results(losses)
    cells = {Cell(arm, seed).id: arm.network for arm in found.size.arms for seed in found.size.seeds}
    return replace(found, found={
        name: replace(result, doctor=lines[cells[name]]) for name, result in found.found.items()
    })  # fmt: skip


def shares(results: Results) -> dict[str, tuple[str, str]]:
    (table,) = prediction_table((results, lambda arm: arm.blocks))
    return {row[0]: (row[1], row[2]) for row in table.rows}


def test_a_measurement_is_right_where_it_orders_a_pair_as_the_losses_do() -> None:
    results = examined(
        {"good": [1.0, 1.01], "bad": [2.0, 2.01]},
        {"good": [line(0, 0.1), line(2, 0.9)], "bad": [line(0, 0.2), line(2, 0.3, {"shortcut-degrades": "severe"})]},
    )
    found = shares(results)
    assert found["median γ is higher"] == ("0 of 1", "1 of 1")
    assert found["`shortcut-degrades` is found less often"] == ("–", "1 of 1")
    assert found["the doctor finds less"] == ("–", "1 of 1")
    assert found["the largest update is smaller"] == ("–", "–"), "equal numbers order nothing"


def test_a_pair_of_two_studies_counts_once() -> None:
    lines = {"good": [line(0, 0.9), line(2, 0.9)], "bad": [line(0, 0.2), line(2, 0.3)]}
    study = examined({"good": [1.0, 1.01], "bad": [2.0, 2.01]}, lines), lambda arm: arm.blocks
    (table,) = prediction_table(study, study)
    assert table.rows[0][1:] == ["1 of 1", "1 of 1"]


def test_pairs_without_a_clear_difference_do_not_count() -> None:
    lines = {name: [line(0, 0.1 * number), line(2, 0.5)] for number, name in enumerate(("a", "b"), 1)}
    assert not list(prediction_table((examined({"a": [1.0, 2.0], "b": [1.5, 2.5]}, lines), lambda arm: arm.blocks)))


def test_networks_of_different_cost_are_not_compared() -> None:
    lines = {name: [line(0, 0.5), line(2, 0.5)] for name in ("a", "b")}
    results = examined({"a": [1.0, 1.01], "b": [2.0, 2.01]}, lines)
    assert not list(prediction_table((results, lambda arm: arm.key)))


def test_published_lines_without_measurements_are_left_out() -> None:
    assert not list(prediction_table((toy.results({"a": [1.0, 1.01], "b": [2.0, 2.01]}), lambda arm: arm.blocks)))
