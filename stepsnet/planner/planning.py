"""Plans for a budget: one dial (blocks), hard limits on parameters, MACs and predicted latency; everything else is
derived and shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from stepsnet.errors import UsageError
from stepsnet.models.design import format_plans
from stepsnet.planner import latency as timing
from stepsnet.planner.search import MACS, MAX_STEPS, RESOURCES, Candidate, combine, search
from stepsnet.planner.subject import Counted, Subject, count, stepped_stages, with_all_multiples
from stepsnet.units import si

SLACK = {"params": 1.05, "macs": 1.03}
"""Without budgets: how much of the model's own parameters and MACs a plan may use."""
ROWS = 9
VERIFIED = 3
_SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LATENCY = re.compile(r"([\d.]+)\s*(ms|s)(?:@batch(0*[1-9]\d*))?")


@dataclass(frozen=True)
class Row:
    """One plan with its cost; `seconds` is predicted from its blocks, `measured` end to end.

    Both are None without a latency budget.
    """

    plan: str
    blocks: int
    params: int
    macs: int
    seconds: float | None = None
    measured: float | None = None


@dataclass(frozen=True)
class PlanResult:
    """`plan` is the text for `plan=`.

    `rows` has the best plan for several numbers of blocks, the chosen one among them.
    """

    model: str
    plan: str
    chosen: Row
    plain: Row
    rows: tuple[Row, ...]
    twin: str
    """A residual network of the same depth within the same budget; for several stages, a sentence that none was
    searched."""
    limits: dict[str, float]
    batch: int
    deepest: int
    candidates: int
    """How many plans the search covered."""
    why_not_deeper: str

    def __str__(self) -> str:
        return self.plan

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "chosen": vars(self.chosen),
            "plain": vars(self.plain),
            "rows": [vars(row) for row in self.rows],
        }


class Budget(TypedDict, total=False):
    """Hard limits and the depth of a plan; see `stepsnet.plan`."""

    params: float | str | None
    macs: float | str | None
    latency: str | None
    blocks: int | str | None
    steps: int | None


def plan_for(
    subject: Subject, *, tick: timing.Tick = lambda _done, _total: None, **budget: Unpack[Budget]
) -> PlanResult:
    """The best plan for a model within a budget; `tick` is called while latencies are measured."""
    params, macs, latency = budget.get("params"), budget.get("macs"), budget.get("latency")
    blocks, steps = budget.get("blocks"), budget.get("steps")
    if steps is not None and not 1 <= steps <= MAX_STEPS:
        raise UsageError(f"steps is a number from 1 to {MAX_STEPS}, not {steps}")
    seconds, batch = parse_latency(latency) if latency is not None else (math.inf, 1)
    counted = count(subject)
    if latency is None:
        counted = with_all_multiples(counted, subject)
    else:  # every width would have to be measured
        counted = timing.with_seconds(counted, subject, batch, tick)
    whole = counted.fixed + sum(stage.plain_cost for stage in counted.stages)
    limit = np.array([
        parse_size(params, "params") if params is not None else SLACK["params"] * whole[0],
        parse_size(macs, "macs") if macs is not None else SLACK["macs"] * whole[1],
        seconds,
    ])  # fmt: skip
    target = limit[1] if macs is not None else whole[1]
    found, candidates = search_all(subject, counted, limit, target, steps)
    if not found and (most := _most_macs(counted, limit)) < limit[MACS]:
        # Depths are tried around their share of the MACs. Far more MACs than the other budgets allow lead nowhere.
        lower = np.where(np.arange(len(limit)) == MACS, most, limit)
        found, candidates = search_all(subject, counted, lower, min(target, most), steps)
    if not found:
        raise UsageError(_nothing_fits(subject, counted, whole, limit))
    own = sum(plan.blocks for plan in subject.plain)
    found = {number: each for number, each in found.items() if number >= own} or found
    deepest = max(found)
    wanted = _wanted(subject, blocks, found)
    row = _row_of(counted, latency is not None)
    rows = [row(found[number]) for number in _shown(sorted(found), wanted)]
    if latency is not None:
        rows = _verified(subject, rows, wanted, batch)
    chosen = next(each for each in rows if each.blocks == wanted)
    plain = Candidate(subject.plain, whole - counted.fixed, 0.0)
    return PlanResult(
        subject.name,
        chosen.plan,
        chosen,
        row(plain),
        tuple(rows),
        _twin(subject, counted, limit, wanted),
        {name: float(value) for name, value in zip(RESOURCES, limit, strict=True) if math.isfinite(value)},
        batch,
        deepest,
        candidates,
        _why_not_deeper(counted, limit, found[deepest]),
    )


def _most_macs(counted: Counted, limit: NDArray[np.float64]) -> float:
    """The most MACs that blocks of any width can use within the other budgets."""
    costs = np.stack([cost for stage in counted.stages for cost in stage.costs.values()])
    per_mac = (costs / costs[:, [MACS]]).min(axis=0)
    free = limit - counted.fixed
    others = [free[index] / per_mac[index] for index in range(len(limit)) if index != MACS and per_mac[index] > 0]
    return float(counted.fixed[MACS] + min(others))


def search_all(
    subject: Subject, counted: Counted, limit: NDArray[np.float64], target: float, steps: int | None
) -> tuple[dict[int, Candidate], int]:
    """The best plan for every total number of blocks, and how many plans of stages the search covered.

    Each stepped stage gets a part of the budget in proportion to its plain cost.
    """
    stepped = stepped_stages(subject)
    kept = [stage.plain_cost for number, stage in enumerate(counted.stages) if number not in stepped]
    outside = counted.fixed + sum(kept, np.zeros(3))
    free = limit - outside
    if (free <= 0).any():
        return {}, 0
    together = sum((counted.stages[number].plain_cost for number in stepped), np.zeros(3))
    stages, candidates = [], 0
    for number, stage in enumerate(counted.stages):
        if number in stepped:
            share = np.divide(stage.plain_cost, together, out=np.ones(3), where=together > 0)
            best, tried = search(stage, free * share, (target - outside[1]) * share[1], steps)
            stages.append(best)
            candidates += tried
        else:
            plan = subject.plain[number]
            stages.append({plan.blocks: Candidate((plan,), stage.plain_cost, 0.0)})
    return (combine(stages) if all(stages) else {}), candidates


def _wanted(subject: Subject, blocks: int | str | None, found: dict[int, Candidate]) -> int:
    if blocks == "max":
        return max(found)
    if blocks is None:
        twice = 2 * sum(plan.blocks for plan in subject.plain)
        return min(found, key=lambda number: (abs(number - twice), found[number].score))
    number = int(blocks) if str(blocks).isdigit() else 0
    if number < 1:
        raise UsageError(f"blocks is a positive number or 'max', not {blocks!r}")
    if number not in found:
        near = min(found, key=lambda other: abs(other - number))
        raise UsageError(
            f"the planner has no plan of {number} blocks for {subject.name} near the budget; the nearest has {near}: "
            f"'{format_plans(found[near].plans)}' (possible: {min(found)} to {max(found)} blocks)"
        )
    return number


def _row_of(counted: Counted, timed: bool) -> Callable[[Candidate], Row]:
    def row(candidate: Candidate) -> Row:
        params, macs, seconds = candidate.cost + counted.fixed
        return Row(
            format_plans(candidate.plans),
            candidate.blocks,
            round(params),
            round(macs),
            float(seconds) if timed else None,
        )

    return row


def _shown(numbers: Sequence[int], wanted: int) -> list[int]:
    """At most ROWS numbers of blocks, evenly spread, with the wanted one, the smallest and the largest among them."""
    spread = {numbers[round(index * (len(numbers) - 1) / (ROWS - 2))] for index in range(ROWS - 1)}
    return sorted(spread | {wanted})


def _verified(subject: Subject, rows: list[Row], wanted: int, batch: int) -> list[Row]:
    """The rows nearest to the wanted depth with their measured latency, so that prediction and measurement can be
    compared."""
    nearest = sorted(rows, key=lambda row: abs(row.blocks - wanted))[:VERIFIED]
    plans = [row.plan for row in nearest]
    measured = dict(zip(plans, timing.measure(subject, plans, batch), strict=True))
    return [replace(row, measured=measured.get(row.plan)) for row in rows]


def _twin(subject: Subject, counted: Counted, limit: NDArray[np.float64], blocks: int) -> str:
    """The widest residual network of `blocks` blocks within the budget, for networks of one stage."""
    if len(counted.stages) > 1:
        own = sum(plan.blocks for plan in subject.plain)
        return f"not searched for several stages; the plain {subject.name} has {own} blocks in its plan"
    (stage,) = with_all_multiples(counted, subject).stages
    free = limit - counted.fixed
    fitting = [width for width, cost in stage.costs.items() if (blocks * cost <= free).all()]
    return (
        f"{max(fitting)}x{blocks}"
        if fitting
        else f"none: {blocks} blocks of width {min(stage.costs)} exceed the budget"
    )


def _why_not_deeper(counted: Counted, limit: NDArray[np.float64], deepest: Candidate) -> str:
    """What stops one more block in the narrowest step of the deepest plan: a budget or the shape of the plans."""
    most = f"{deepest.blocks} blocks are the most"
    stage, plan = max(enumerate(deepest.plans), key=lambda each: each[1].blocks)
    width = plan.widths[0]
    over = (counted.fixed + deepest.cost + counted.stages[stage].costs[width]) / limit - 1
    worst = int(over.argmax())
    if over[worst] > 0:
        return f"{most}: another block of width {width} exceeds the budget of {RESOURCES[worst]} by {over[worst]:.2%}"
    shares = "each step must get half to twice the share of MACs that it has in the paper"
    return f"{most} that fit both the budget and the planner's rule: {shares}"


def _nothing_fits(subject: Subject, counted: Counted, whole: NDArray[np.float64], limit: NDArray[np.float64]) -> str:
    def said(value: float) -> str:
        return si(value) if value >= 1 else f"{value:.4g}"  # counts, or seconds

    over = [
        f"{name} {said(value)} (the plain model has {said(own)}, {said(fixed)} of it outside the blocks)"
        for name, value, own, fixed in zip(RESOURCES, limit, whole, counted.fixed, strict=True)
        if value < own
    ]
    if limit[2] < whole[2]:
        over.append(f"block times measured earlier are kept in {timing.cache_path()}, delete it to measure again")
    why = "; ".join(over) or "the steps asked for do not fit into its width"
    return f"no plan for {subject.name} fits the budget: {why}"


def parse_size(text: float | str, name: str) -> float:
    """22e6 from "22M"; the suffixes are k, M, G and T."""
    if isinstance(text, (int, float)):
        return float(text)
    match = re.fullmatch(r"([\d.]+)\s*([kMGT]?)", text.strip())
    try:
        assert match is not None
        return float(match[1]) * _SUFFIXES[match[2]]
    except (AssertionError, ValueError):
        raise UsageError(f"{name}={text} is not a size; sizes look like 22M, 4.6G or 22000000") from None


def parse_latency(text: str) -> tuple[float, int]:
    """Seconds and batch size from "10ms@batch1"; the batch is 1 by default."""
    match = _LATENCY.fullmatch(str(text).strip())
    try:
        assert match is not None
        return float(match[1]) * (1e-3 if match[2] == "ms" else 1.0), int(match[3] or 1)
    except (AssertionError, ValueError):
        raise UsageError(
            f"latency={text} is not a latency; latencies look like 10ms, 10ms@batch1 or 0.5s@batch8"
        ) from None
