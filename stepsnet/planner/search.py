"""Search for the plan of a stage: widths and depths of its steps under hard budgets. Numbers only, no torch.

The space holds plans shaped like the paper's (Sec. 4.1, Tables 8, 12, 13): one to seven steps, each 1.25 to 1.6 times
as wide as the one before (the paper: √2), no step narrower than an eighth of the full width, and each step with half to
twice the paper's share of the computation. The paper gives half of it to the widest step, a quarter to the next, and so
on; the two narrowest get equal shares. Every width that has a cost and every depth is in the space: up to 1e12 plans.

The search is exhaustive: for every number of blocks it returns a plan of the lowest score of all plans that fit.
It is a branch and bound. Plans are built from the widest step to the narrowest, and a partial plan is dropped only
where a lower bound of the score of all its completions is not below the score of a plan already found, or where its
cheapest completion exceeds a budget. A test compares it with brute force.

The lower bounds. The score of a plan is a sum over its steps plus `unused(c)`, a term of its MACs c. Let
x = (parameters, MACs, seconds) / limit be what a plan uses, and v any prices, those of parameters and seconds not
negative. A plan that fits has x ≤ 1, so its score is at least

    min over plans of [sum over steps + v·x]  +  min over c of [unused(c) − v₁c/limit]  −  v₀  −  v₂.

The first part is a sum over steps: dynamic programming over (step, width, blocks left) gives it for every partial plan.
The second has a closed form. The bound of a partial plan is the largest one over some prices v.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepsnet.macro.plan import StepPlan

GROWTH = (1.25, 1.6)
"""The smallest and largest ratio of the widths of two neighbouring steps."""
NARROWEST = 8
"""The full width divided by the smallest width of a step."""
MAX_STEPS = 7
RATIO_WEIGHT, UNUSED_WEIGHT = 10.0, 4.0
"""Weights in the score: widths away from √2, and MACs that are left over."""
FIRST_LOOK = 24
"""Partial plans for each number of blocks in the first pass, whose results are the bounds of the second one."""

RESOURCES = ("params", "macs", "seconds")
MACS, SECONDS = RESOURCES.index("macs"), RESOURCES.index("seconds")
PRICES = np.array(
    [[0.0, price, 0.0] for price in (-6.0, -4.0, -2.0, 0.0, 1.0, 2.0, 4.0, 8.0)]
    + [[price, used, 0.0] for price in (1.0, 4.0) for used in (-4.0, 0.0)]
    + [[0.0, used, price] for price in (1.0, 4.0) for used in (-4.0, 0.0)]
)
"""Of parameters, MACs and seconds, for the lower bounds."""
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class StageCosts:
    """A stage of residual blocks: its plain stack, and what one block costs at each width that a step may have.

    `costs[width]` is an array in the order of RESOURCES. Seconds are 0 unless they were measured.
    """

    width: int
    depth: int
    costs: Mapping[int, Floats]

    @property
    def plain_cost(self) -> Floats:
        return self.depth * self.costs[self.width]


@dataclass(frozen=True)
class Candidate:
    """A plan for one stage or, combined, for all of them.

    A lower score is nearer to the paper's shape and to the budget of MACs.
    """

    plans: tuple[StepPlan, ...]
    cost: Floats
    score: float

    @property
    def blocks(self) -> int:
        return sum(plan.blocks for plan in self.plans)

    def __add__(self, other: Candidate) -> Candidate:
        return Candidate(self.plans + other.plans, self.cost + other.cost, self.score + other.score)


def search(
    stage: StageCosts, limit: Floats, target: float, steps: int | None = None
) -> tuple[dict[int, Candidate], int]:
    """The best plan for every number of blocks that fits `limit` (in the order of RESOURCES), and how many plans the
    space has.

    `target` is the number of MACs that a plan should at least use; `steps` fixes the number of steps.
    """
    best: dict[int, Candidate] = {}
    plans = 0
    for number in range(1, MAX_STEPS + 1) if steps is None else (steps,):
        space = Space(stage, limit, target, number)
        if (size := space.size()) > 0:
            plans += size
            _Bounded(space, best).run()
    return best, plans


def combine(stages: Sequence[dict[int, Candidate]]) -> dict[int, Candidate]:
    """The best combination of one plan for each stage, for every total number of blocks."""
    best, *rest = stages
    for stage in rest:
        merged: dict[int, Candidate] = {}
        for one in best.values():
            for other in stage.values():
                both = one + other
                if both.blocks not in merged or both.score < merged[both.blocks].score:
                    merged[both.blocks] = both
        best = merged
    return best


def paper_shares(steps: int) -> Floats:
    """Each step's share of the computation in the paper's plans, narrow to wide: 1; ½, ½; ¼, ¼, ½; ⅛, ⅛, ¼, ½; …"""
    halves = [2.0 ** -(steps - step) for step in range(steps)]
    return np.array([2 * halves[0] if steps == 1 else halves[1], *halves[1:]])


class Space:
    """All plans of `steps` steps for a stage, and their score. Step 0 is the narrowest, widths are given by index."""

    def __init__(self, stage: StageCosts, limit: Floats, target: float, steps: int) -> None:
        self.steps, self.limit = steps, limit
        self.widths = np.array(sorted(width for width in stage.costs if width * NARROWEST >= stage.width))
        self.costs = np.stack([stage.costs[width] for width in self.widths])
        """Of one block, one row for each width."""
        own = stage.plain_cost
        scale = min(bound / cost for bound, cost in zip(limit, own, strict=True) if cost > 0)
        self.target = min(target, own[MACS] * scale)
        """MACs that the tightest budget allows."""
        self.wanted = paper_shares(steps)[:, None] * self.target / self.costs[:, MACS]
        """The depth of each step at each width that gives it the paper's share."""
        self.least = np.maximum(1, np.ceil(self.wanted / 2)).astype(np.int64)
        self.most = np.maximum(1, np.floor(2 * self.wanted)).astype(np.int64)
        if steps > 1:  # the last slice may pass without a block, as in Steps-ResNet-18 (Table 12)
            short = self.wanted[-1] < 1
            self.least[-1, short], self.most[-1, short] = 0, 1
        self.from_narrower = np.searchsorted(self.widths * GROWTH[1], self.widths)
        """The index of the first width of which each width is at most 1.6 times as wide."""
        self.to_narrower = np.searchsorted(self.widths * GROWTH[0], self.widths, side="right")
        """One behind the index of the last width of which each width is at least 1.25 times as wide."""
        first = last = len(self.widths) - 1
        self.reached = [np.arange(first, last + 1)]
        """The widths that a step may have at all."""
        for _ in range(steps - 1):
            first, last = self.from_narrower[first], max(self.to_narrower[last] - 1, 0)
            self.reached.insert(0, np.arange(first, last + 1))

    def size(self) -> int:
        """How many plans there are."""
        plans = [0] * len(self.widths)
        for step in range(self.steps):
            below = [sum(plans[a:b]) for a, b in zip(self.from_narrower, self.to_narrower, strict=True)]
            depths = (self.most[step] - self.least[step] + 1).tolist()
            plans = [each * (less if step else 1) for each, less in zip(depths, below, strict=True)]
        return plans[-1]

    def depth_score(self, step: int, width: Ints, depth: Ints) -> Floats:
        """How far the step is from the paper's share of the computation."""
        return np.log2(np.maximum(depth / self.wanted[step, width], 1 / 4)) ** 2 / self.steps

    def ratio_score(self, narrow: Ints, wide: Ints) -> Floats:
        """How far two neighbouring widths are from √2."""
        ratio = self.widths[wide] / self.widths[narrow]
        return RATIO_WEIGHT * (np.log2(ratio) - 0.5) ** 2 / self.steps

    def unused_score(self, macs: Floats) -> Floats:
        return UNUSED_WEIGHT * np.maximum(np.log2(self.target / macs), 0)


@dataclass(frozen=True)
class _Partial:
    """Partial plans, one in each row: all steps from the widest down to one of width `width`."""

    blocks: Ints
    """Of the whole plan."""
    left: Ints
    """Blocks for the steps that have no depth yet."""
    width: Ints
    score: Floats
    cost: Floats
    chosen: Ints
    """Index of the width and depth of each step, widest first; the columns grow by one with each choice."""

    def __getitem__(self, rows: Ints) -> _Partial:
        return _Partial(*(value[rows] for value in vars(self).values()))


class _Bounded:
    """Branch and bound in one space. `best` has the plans found so far, by their number of blocks."""

    def __init__(self, space: Space, best: dict[int, Candidate]) -> None:
        self.space, self.best = space, best
        self.rates = space.costs / space.limit
        prices = PRICES if self.rates[:, 2].any() else PRICES[PRICES[:, 2] == 0]
        self.prices = np.concatenate([np.eye(3), prices])
        """The first three rows bound the use of each resource, the others the score."""
        self.constant = np.concatenate([np.zeros(3), [self._constant(row) for row in self.prices[3:]]])
        self.deepest = self._deepest()
        self.at_width, self.below = self._completions()

    def _constant(self, prices: Floats) -> float:
        """The part of the bound that is the same for all plans; see the top of this file."""
        space, price = self.space, float(prices[MACS])
        macs = float(space.limit[MACS])
        if price < 0:
            macs = min(macs, space.target, UNUSED_WEIGHT * macs / (-price * math.log(2)))
        used = macs / float(space.limit[MACS])
        return float(space.unused_score(np.array(macs))) - price * used - float(prices.sum() - price)

    def _deepest(self) -> int:
        """An upper bound of the blocks of a plan that fits."""
        most = min(1 / rate for rate in self.rates.min(axis=0) if rate > 0)
        deepest = [self.space.most[step, widths].max() for step, widths in enumerate(self.space.reached)]
        return min(math.floor(most), int(sum(deepest)))

    def _completions(self) -> tuple[list[Floats], list[Floats]]:
        """The least priced sum over the steps 0 … i, for every number of blocks: [prices, width, blocks].

        First list: where step i has that width. Second list: where step i + 1 has it.
        """
        space, every = self.space, np.arange(len(self.space.widths))
        priced = self.prices @ self.rates.T
        shape = (len(self.prices), len(every), self.deepest + 1)
        below = np.full(shape, np.inf)
        below[:, :, 0] = 0
        at_width, belows = [], []
        for step, reached in enumerate(space.reached):
            least, most = space.least[step, reached], space.most[step, reached]
            found = np.full(shape, np.inf)
            for depth in range(least.min(), min(most.max(), self.deepest) + 1):
                widths = reached[(least <= depth) & (depth <= most)]
                added = depth * priced[:, widths]
                added[3:] += space.depth_score(step, widths, np.array(depth))
                sums = below[:, widths, : shape[2] - depth] + added[:, :, None]
                found[:, widths, depth:] = np.minimum(found[:, widths, depth:], sums)
            below = np.full(shape, np.inf)
            for wide in space.reached[step + 1] if step + 1 < space.steps else ():
                start, stop = space.from_narrower[wide], space.to_narrower[wide]
                if start < stop:
                    ratio = np.zeros((len(self.prices), stop - start, 1))
                    ratio[3:] += space.ratio_score(every[start:stop], every[[wide]])[:, None]
                    below[:, wide] = (found[:, start:stop] + ratio).min(axis=1)
            at_width.append(found)
            belows.append(below)
        return at_width, belows

    def run(self) -> None:
        self._pass(FIRST_LOOK)
        self._pass(None)

    def _pass(self, kept: int | None) -> None:
        """Extend all partial plans step by step; with `kept`, only the best ones for each number of blocks."""
        space = self.space
        numbers = np.arange(1, self.deepest + 1)
        zeros = np.zeros(len(numbers))
        widest = np.full(len(numbers), len(space.widths) - 1)
        nothing = np.zeros((len(numbers), 0), dtype=np.int64)
        plans = _Partial(numbers, numbers, widest, zeros, np.zeros((len(numbers), 3)), nothing)
        plans = self._promising(plans, self.at_width[-1], kept)
        for step in reversed(range(space.steps)):
            plans = self._with_depths(plans, step)
            if step == 0:
                break
            plans = self._promising(plans, self.below[step - 1], kept)
            plans = self._with_widths(plans)
            plans = self._promising(plans, self.at_width[step - 1], kept)
        self._keep_best(plans)

    def _with_depths(self, plans: _Partial, step: int) -> _Partial:
        space = self.space
        least = space.least[step, plans.width]
        most = np.minimum(space.most[step, plans.width], plans.left)
        if step == 0:
            least = np.maximum(least, plans.left)
        rows, depth = _spread(least, most + 1)
        plans = plans[rows]
        return _Partial(
            plans.blocks,
            plans.left - depth,
            plans.width,
            plans.score + space.depth_score(step, plans.width, depth),
            plans.cost + depth[:, None] * space.costs[plans.width],
            np.concatenate([plans.chosen, plans.width[:, None], depth[:, None]], axis=1),
        )

    def _with_widths(self, plans: _Partial) -> _Partial:
        space = self.space
        rows, width = _spread(space.from_narrower[plans.width], space.to_narrower[plans.width])
        plans = plans[rows]
        score = plans.score + space.ratio_score(width, plans.width)
        return _Partial(plans.blocks, plans.left, width, score, plans.cost, plans.chosen)

    def _promising(self, plans: _Partial, completions: Floats, kept: int | None) -> _Partial:
        """Those that may fit and may become better than the best plan so far."""
        use = plans.cost / self.space.limit
        bounds = self.prices @ use.T + completions[:, plans.width, plans.left] + self.constant[:, None]
        bounds[3:] += plans.score
        fits = (bounds[:3] <= 1 + 1e-9).all(axis=0)
        lowest = bounds[3:].max(axis=0)
        so_far = np.array([found.score if (found := self.best.get(n)) else np.inf for n in range(self.deepest + 1)])
        rows = np.flatnonzero(fits & (lowest < so_far[plans.blocks] - 1e-9))
        if kept is not None:
            order = rows[np.lexsort((lowest[rows], plans.blocks[rows]))]
            _, first, counts = np.unique(plans.blocks[order], return_index=True, return_counts=True)
            rows = order[np.arange(len(order)) - np.repeat(first, counts) < kept]
        return plans[rows]

    def _keep_best(self, plans: _Partial) -> None:
        plans = plans[np.flatnonzero((plans.cost <= self.space.limit).all(axis=1))]
        scores = plans.score + self.space.unused_score(plans.cost[:, MACS])
        order = np.lexsort((scores, plans.blocks))
        for row in order[np.unique(plans.blocks[order], return_index=True)[1]]:
            found = self.best.get(number := int(plans.blocks[row]))
            if found is None or scores[row] < found.score:
                widths, depths = plans.chosen[row, -2::-2], plans.chosen[row, ::-2]
                plan = StepPlan(tuple(self.space.widths[widths].tolist()), tuple(depths.tolist()))
                self.best[number] = Candidate((plan,), plans.cost[row], float(scores[row]))


def _spread(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Every (row, value) with starts[row] <= value < stops[row]."""
    counts = np.maximum(stops - starts, 0)
    rows = np.repeat(np.arange(len(starts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - starts, counts)
