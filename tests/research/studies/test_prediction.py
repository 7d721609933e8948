"""Whether early measurements order networks as their losses do, on made-up results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stepsnet.research.studies.prediction import BETTER, POST_NORM, prediction_table
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.study import Arm, Cell
from tests.research.studies import toy


def line(step: int, gamma: float, findings: dict[str, str] | None = None) -> dict[str, Any]:
    return {"step": step, "numbers": dict.fromkeys(BETTER, 0.5) | {"gamma": gamma}, "findings": findings or {}}


def examined(
    losses: dict[str, list[float | None]], lines: dict[str, list[dict[str, Any]]], arms: list[Arm] | None = None
) -> Results:
    found = toy.results(losses, arms)
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


def test_findings_about_joins_are_also_counted_where_only_the_joins_differ() -> None:
    found = {"new-channels-too-small": "severe"}
    losses: dict[str, list[float | None]] = {"matched": [1.0, 1.01], "plain": [2.0, 2.01], "deep": [3.0, 3.01]}
    arms = [toy.arm("matched", "join=matched"), toy.arm("plain"), toy.arm("deep", "plan=16x3")]
    lines = {arm.network: [line(0, 0.5), line(2, 0.5, {} if arm.network == "matched" else found)] for arm in arms}
    counted = shares(examined(losses, lines, arms))
    assert counted["`new-channels-too-small` is found less often"] == ("–", "2 of 2")
    assert counted["the same, if only the joins differ"] == ("–", "1 of 1")


def test_verdicts_are_also_counted_without_deepnorm() -> None:
    losses: dict[str, list[float | None]] = {"good": [1.0, 1.01], "bad": [2.0, 2.01], "post": [3.0, 3.01]}
    arms = [toy.arm("good"), toy.arm("bad", "plan=16x3"), toy.arm("post", POST_NORM)]
    found = {"good": {"new-channels-too-small": "warning"}, "bad": {"a": "note"}, "post": {"a": "severe"}}
    lines = {arm.network: [line(0, 0.5), line(2, 0.5, found[arm.network])] for arm in arms}
    counted = shares(examined(losses, lines, arms))
    assert counted["the doctor finds less"] == ("–", "2 of 3")
    assert counted["the same, without DeepNorm"] == ("–", "0 of 1")
    assert counted["the same, without DeepNorm and findings about joins"] == ("–", "–")


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
