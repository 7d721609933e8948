"""Plans of equal cost: n steps for the price of the model as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.surgery.hosts import Host, Measured

MACS_WITHIN, PARAMS_WITHIN = 0.03, 0.05
"""How far the whole model may move from its cost."""

KEPT = 64
"""Candidates of each stage that are combined with those of the others."""


@dataclass(frozen=True)
class _Candidate:
    plan: StepPlan
    params: int
    """More, or fewer, than the stage had."""
    macs: int
    moved: int
    """Blocks more or fewer than in the paper's plan."""


def equal_cost(host: Host, steps: Sequence[int]) -> tuple[StepPlan, ...]:
    """One plan a stage with that many steps. Widths are √2 apart, depths start from the paper's rule and move to meet
    the cost.

    MACs stay within 3 % and parameters within 5 % of the model; of the plans that do, the one nearest to the paper's
    rule is taken.
    """
    before = host.measure()
    costs = _block_costs(host, steps)
    best: list[list[_Candidate]] = []
    for stage, (where, count) in enumerate(zip(host.stages, steps, strict=True)):
        if count == 1:
            best.append([_Candidate(StepPlan.residual(where.width, where.depth), 0, 0, 0)])
            continue
        rule = StepPlan.default(where.width, where.depth, count, _rounding(host, stage))
        candidates = _candidates(rule, costs[stage], before.blocks[stage])
        best.append(sorted(candidates, key=lambda found: _badness([found], before))[:KEPT])
    combinations = product(*(stage[: max(4, KEPT // 4 ** (len(steps) - 1))] for stage in best))
    chosen = min(combinations, key=lambda found: _badness(found, before))
    macs, params = (sum(getattr(one, key) for one in chosen) for key in ("macs", "params"))
    if abs(macs) > MACS_WITHIN * before.macs or abs(params) > PARAMS_WITHIN * before.params:
        nearest = "; ".join(str(one.plan) for one in chosen)
        change = f"MACs {macs / before.macs:+.1%}, parameters {params / before.params:+.1%}"
        raise UsageError(
            f"no plan of {max(steps)} steps costs the same; "
            f"plan='{nearest}' is nearest ({change})"
        )
    return tuple(one.plan for one in chosen)


def _badness(chosen: Sequence[_Candidate], before: Measured) -> tuple[bool, float, float]:
    """First whether the limits hold, then distance from the paper's plan, then distance from the cost."""
    macs = abs(sum(one.macs for one in chosen)) / before.macs / MACS_WITHIN
    params = abs(sum(one.params for one in chosen)) / before.params / PARAMS_WITHIN
    beyond = max(macs, params) > 1
    return beyond, 0.0 if beyond else sum(one.moved for one in chosen), max(macs, params)


def _candidates(
    rule: StepPlan, costs: dict[int, tuple[int, int]], before: Sequence[tuple[int, int]]
) -> Iterator[_Candidate]:
    had_params, had_macs = (sum(cost[i] for cost in before) for i in (0, 1))
    reach = 3 if len(rule) > 3 else 6
    ranges = [range(max(1, depth - reach), depth + reach + 1) for depth in rule.depths]
    for depths in product(*ranges):
        params, macs = (sum(d * costs[w][i] for w, d in zip(rule.widths, depths, strict=True)) for i in (0, 1))
        moved = sum(abs(a - b) for a, b in zip(depths, rule.depths, strict=True))
        yield _Candidate(StepPlan(rule.widths, depths), params - had_params, macs - had_macs, moved)


def _block_costs(host: Host, steps: Sequence[int]) -> list[dict[int, tuple[int, int]]]:
    """(parameters, MACs) of a block of each width of each stage, counted in the model's own loop with one block a
    width."""
    from stepsnet.surgery.stepify import exchanged, make_blocks

    plans = []
    for stage, (where, count) in enumerate(zip(host.stages, steps, strict=True)):
        if count == 1:
            plans.append(StepPlan.residual(where.width, where.depth))
        else:
            widths = StepPlan.default(where.width, where.depth, count, _rounding(host, stage)).widths
            plans.append(StepPlan(widths, (1,) * count))
    with torch.device("meta"):
        blocks = make_blocks(host, plans, "plain")
    with exchanged(host, blocks):
        found = host.measure()
    return [
        dict(zip(plan.widths, costs, strict=True)) if len(plan) > 1 else {}
        for plan, costs in zip(plans, found.blocks, strict=True)
    ]


def _rounding(host: Host, stage: int):  # type: ignore[no-untyped-def]
    unit = host.unit(stage)
    return lambda width: unit * round(width / unit)
