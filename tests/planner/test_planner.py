"""Plans for a budget: the search, the costs it uses, and what it says about its result."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from stepsnet import cost_of, create_model
from stepsnet.errors import UsageError
from stepsnet.planner import ZooSubject, latency, plan_for
from stepsnet.planner.planning import parse_latency, parse_size
from stepsnet.planner.search import GROWTH, Space, StageCosts, paper_shares, search
from stepsnet.planner.subject import count


def transformer_stage(width: int, depth: int, tokens: int = 197) -> StageCosts:
    def cost(w: int) -> list[float]:
        return [12 * w * w, 12 * tokens * w * w + 2 * tokens * tokens * w, 0.0]

    return StageCosts(width, depth, {w: np.array(cost(w)) for w in range(8, width + 1, 8)})


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("deit_small", "192x12, 272x6, 384x6"),
        ("deit_base", "384x12, 544x6, 768x6"),
        ("transformer_30m", "192x6, 272x3, 384x3"),
    ],
)
def test_the_default_is_the_papers_plan(name: str, plan: str) -> None:
    assert plan_for(ZooSubject(name)).plan == plan


@pytest.mark.parametrize("name", ["test_deit", "test_swin", "test_resnet", "test_transformer", "swin_tiny"])
def test_costs_of_the_chosen_plan_are_those_of_the_built_model(name: str) -> None:
    chosen = plan_for(ZooSubject(name)).chosen
    built = cost_of(create_model(name, plan=chosen.plan, device="meta"))
    assert (chosen.params, chosen.macs) == (built.params, built.macs)


@pytest.mark.parametrize("name", ["test_deit", "test_swinpp", "deit_tiny", "resnet34"])
def test_without_budgets_a_plan_stays_near_the_cost_of_the_model(name: str) -> None:
    found = plan_for(ZooSubject(name))
    assert found.chosen.macs <= 1.03 * found.plain.macs
    assert found.chosen.params <= 1.05 * found.plain.params


def test_every_row_keeps_the_budget() -> None:
    found = plan_for(ZooSubject("deit_tiny"), macs="1.2G", params="5.5M")
    assert all(row.macs <= 1.2e9 and row.params <= 5.5e6 for row in found.rows)


def test_blocks_is_the_depth() -> None:
    assert plan_for(ZooSubject("deit_tiny"), blocks=30).chosen.blocks == 30


def test_max_is_the_deepest() -> None:
    found = plan_for(ZooSubject("deit_tiny"), blocks="max")
    assert found.chosen.blocks == found.deepest == max(row.blocks for row in found.rows)


def test_the_reason_for_the_depth_names_the_budget_too() -> None:
    whole, less = (plan_for(ZooSubject("test_deit"), blocks="max", macs=macs) for macs in (None, "0.95M"))
    assert less.deepest < whole.deepest
    assert "that fit both the budget and the planner's rule" in less.why_not_deeper


def test_steps_fixes_the_number_of_steps() -> None:
    assert plan_for(ZooSubject("deit_tiny"), blocks=18, steps=2).plan.count("x") == 2


def test_the_result_is_json() -> None:
    found = plan_for(ZooSubject("test_deit"))
    assert json.loads(json.dumps(found.to_json()))["chosen"]["plan"] == found.plan


def test_a_depth_that_does_not_fit_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no plan of 999 blocks for test_deit .* nearest has \d+: '.*'"):
        plan_for(ZooSubject("test_deit"), blocks=999)


def test_a_budget_below_the_fixed_parts_names_the_budget() -> None:
    with pytest.raises(UsageError, match=r"fits the budget: params 100 \(the plain model has 57\.96 k"):
        plan_for(ZooSubject("test_deit"), params=100)


@pytest.mark.parametrize("blocks", ["many", -3, 0])
def test_wrong_blocks_are_named(blocks: int | str) -> None:
    with pytest.raises(UsageError, match="blocks is a positive number or 'max'"):
        plan_for(ZooSubject("test_deit"), blocks=blocks)


def test_a_stage_needs_no_torch_to_be_searched() -> None:
    stage = transformer_stage(384, 12)
    found, tried = search(stage, stage.plain_cost * [1.05, 1.03, 0] + [0, 0, 1], stage.plain_cost[1])
    assert tried > len(found)
    assert str(found[24].plans[0]) == "192x12, 272x6, 384x6"


def brute_force(stage: StageCosts, limit: np.ndarray, target: float, steps: int) -> tuple[dict[int, float], int]:
    """The lowest score for every number of blocks, from every single plan of the space; and the number of plans."""
    space, best, plans = Space(stage, limit, target, steps), dict[int, float](), 0
    last = len(space.widths) - 1
    for narrow in combinations(range(last), steps - 1):
        ladder = np.array([*narrow, last])
        ratios = space.widths[ladder[1:]] / space.widths[ladder[:-1]]
        if (ratios < GROWTH[0]).any() or (ratios > GROWTH[1]).any():
            continue
        ranges = [range(space.least[i, w], space.most[i, w] + 1) for i, w in enumerate(ladder)]
        depths = np.array(list(product(*ranges)))
        plans += len(depths)
        costs = depths @ space.costs[ladder]
        fits = (costs <= limit).all(axis=1) & (costs[:, 1] > 0)
        scores = space.ratio_score(ladder[:-1], ladder[1:]).sum() + space.unused_score(costs[fits, 1])
        for step, width in enumerate(ladder):
            scores += space.depth_score(step, width, depths[fits, step])
        for number, score in zip(depths[fits].sum(axis=1).tolist(), scores.tolist(), strict=True):
            best[number] = min(score, best.get(number, np.inf))
    return best, plans


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "budget",
    [(1.05, 1.03, np.inf), (0.7, 2.0, np.inf), (1.6, 1.5, np.inf), (3.0, 3.0, 0.9)],
    ids=["own", "few parameters", "generous", "latency"],
)
def test_the_search_finds_what_brute_force_finds(budget: tuple[float, ...], steps: int) -> None:
    stage = transformer_stage(96, 5)
    costs = {width: cost + np.array([0, 0, 1 + width / 50]) for width, cost in stage.costs.items()}
    stage = StageCosts(96, 5, costs)
    limit = stage.plain_cost * budget
    expected, plans = brute_force(stage, limit, min(stage.plain_cost[1], limit[1]), steps)
    found, counted = search(stage, limit, min(stage.plain_cost[1], limit[1]), steps)
    assert counted == plans
    assert {number: plan.score for number, plan in found.items()} == pytest.approx(expected, abs=1e-6)
    assert all((plan.cost <= limit).all() for plan in found.values())


def test_a_search_of_more_than_a_million_plans() -> None:
    found = plan_for(ZooSubject("deit_tiny"))
    assert found.candidates > 100e6


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_paper_shares_add_up(steps: int) -> None:
    assert paper_shares(steps).sum() == pytest.approx(1)


def test_counted_blocks_and_the_rest_make_the_whole_model() -> None:
    counted = count(ZooSubject("test_swin"))
    whole = counted.fixed + sum(stage.plain_cost for stage in counted.stages)
    own = cost_of("test_swin")
    assert whole.tolist() == [own.params, own.macs, 0]


@pytest.mark.parametrize(("text", "value"), [("22M", 22e6), ("4.6G", 4.6e9), ("500k", 5e5), ("7", 7), (3, 3)])
def test_sizes(text: str | int, value: float) -> None:
    assert parse_size(text, "params") == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("10ms", (0.01, 1)), ("0.5s@batch8", (0.5, 8))])
def test_latencies(text: str, value: tuple[float, int]) -> None:
    assert parse_latency(text) == pytest.approx(value)


def test_a_batch_of_nothing_has_no_latency() -> None:
    with pytest.raises(UsageError, match="10ms@batch0 is not a latency"):
        parse_latency("10ms@batch0")


def test_more_macs_than_the_parameters_allow_are_left_over() -> None:
    most, many = (plan_for(ZooSubject("test_deit"), macs=macs) for macs in (1e18, 1e12))
    assert most.plan == many.plan


@pytest.mark.parametrize("text", ["22 million", "M", "1.2.3G", ""])
def test_a_wrong_size_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a size; sizes look like 22M"):
        parse_size(text, "params")


def test_latency_is_measured_once_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    subject = ZooSubject("test_deit")
    found = plan_for(subject, latency="10s@batch2")
    assert found.chosen.seconds is not None
    assert found.chosen.seconds > 0
    assert sum(row.measured is not None for row in found.rows) == 3
    monkeypatch.setattr(latency, "interleaved", lambda *_: pytest.fail("measured again"))
    assert latency.block_seconds(count(subject), subject, 2)["plain"] > 0


def test_the_cache_tells_models_of_one_name_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "cache_path", lambda: tmp_path / "latency.json")
    monkeypatch.setattr(latency, "interleaved", lambda calls, _tick: [1e-3] * len(calls))
    subject = ZooSubject("test_deit")
    found = count(subject)
    for other in (found, found, replace(found, fixed=2 * found.fixed)):
        latency.block_seconds(other, subject, 1)
    assert len(json.loads((tmp_path / "latency.json").read_text())) == 2


def test_a_latency_budget_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "cache_path", lambda: tmp_path / "latency.json")
    subject = ZooSubject("test_deit")
    monkeypatch.setattr(latency, "block_seconds", lambda *_: dict.fromkeys(
        [f"0:{width}" for width in subject.widths(0)], 1e-3) | {"plain": 5e-3})  # fmt: skip
    monkeypatch.setattr(latency, "measure", lambda _subject, plans, _batch: [0.0] * len(plans))
    found = plan_for(subject, latency="9.5ms", blocks="max")
    assert found.chosen.blocks == 8  # 1 ms outside the blocks, 1 ms for each of them


def test_the_refusal_of_a_latency_names_the_file_of_measured_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "cache_path", lambda: tmp_path / "latency.json")
    subject = ZooSubject("test_deit")
    monkeypatch.setattr(latency, "block_seconds", lambda *_: dict.fromkeys(
        [f"0:{width}" for width in subject.widths(0)], 1e-3) | {"plain": 5e-3})  # fmt: skip
    with pytest.raises(UsageError, match=r"are kept in .*latency\.json, delete it to measure again"):
        plan_for(subject, latency="0.5ms")
