"""Search for the plan of a stage: widths and depths of its steps under hard budgets. Numbers only, no torch.

The search covers plans shaped like the paper's (Sec. 4.1, Tables 8, 12, 13): each step 1.25 to 1.6 times as wide as the
one before (the paper: √2), no step narrower than an eighth of the full width, and each step with half to twice the
paper's share of the computation. The paper gives half of it to the widest step, a quarter to the next, and so on; the
two narrowest get equal shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepsnet.macro.plan import StepPlan

GROWTH = (1.25, 1.6)
"""The smallest and largest ratio of the widths of two neighbouring steps."""
NARROWEST = 8
"""The full width divided by the smallest width of a step."""
MAX_STEPS = 7
MAX_CANDIDATES = 150_000
"""Candidates for one number of steps. Where there are more, ladders of widths far from √2 are left out."""

RESOURCES = ("params", "macs", "seconds")
Depths: TypeAlias = NDArray[np.int64]
"""One row for each candidate, one column for each step."""


@dataclass(frozen=True)
class Stage:
    """A stage of residual blocks: its plain stack, and what one block costs at each width that a step may have.

    `costs[width]` is an array in the order of RESOURCES. Seconds are 0 unless they were measured.
    """

    width: int
    depth: int
    costs: Mapping[int, NDArray[np.float64]]

    @property
    def plain_cost(self) -> NDArray[np.float64]:
        return self.depth * self.costs[self.width]


@dataclass(frozen=True)
class Candidate:
    """A plan for one stage or, combined, for all of them.

    A lower score is nearer to the paper's shape and to the budget of MACs.
    """

    plans: tuple[StepPlan, ...]
    cost: NDArray[np.float64]
    score: float

    @property
    def blocks(self) -> int:
        return sum(plan.blocks for plan in self.plans)

    def __add__(self, other: Candidate) -> Candidate:
        return Candidate(self.plans + other.plans, self.cost + other.cost, self.score + other.score)


def search(
    stage: Stage, limit: NDArray[np.float64], target: float, steps: int | None = None
) -> tuple[dict[int, Candidate], int]:
    """The best plan for every number of blocks that fits `limit` (in the order of RESOURCES), and how many were tried.

    `target` is the number of MACs that a plan should at least use; `steps` fixes the number of steps.
    """
    best: dict[int, Candidate] = {}
    tried = 0
    for count in range(1, MAX_STEPS + 1) if steps is None else (steps,):
        for widths, candidates in _candidates(stage, limit, count):
            tried += len(candidates)
            every_cost = candidates.astype(np.float64) @ np.stack([stage.costs[width] for width in widths])
            fits = (every_cost <= limit).all(axis=1)
            if not fits.any():
                continue
            depths, costs = candidates[fits], every_cost[fits]
            scores = _scores(stage, widths, depths, costs, target)
            blocks = depths.sum(axis=1)
            order = np.lexsort((scores, blocks))
            first = order[np.unique(blocks[order], return_index=True)[1]]
            for row in first:
                found = best.get(number := int(blocks[row]))
                if found is None or scores[row] < found.score:
                    plan = StepPlan(widths, tuple(int(depth) for depth in depths[row]))
                    best[number] = Candidate((plan,), costs[row], float(scores[row]))
    return best, tried


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


def paper_shares(steps: int) -> NDArray[np.float64]:
    """Each step's share of the computation in the paper's plans, narrow to wide: 1; ½, ½; ¼, ¼, ½; ⅛, ⅛, ¼, ½; …"""
    halves = [2.0 ** -(steps - step) for step in range(steps)]
    return np.array([2 * halves[0] if steps == 1 else halves[1], *halves[1:]])


def _candidates(stage: Stage, limit: NDArray[np.float64], steps: int) -> Iterator[tuple[tuple[int, ...], Depths]]:
    """Ladders of widths, each with every combination of depths (one row each) in the range of the paper's shares."""
    macs = limit[RESOURCES.index("macs")]
    left = MAX_CANDIDATES
    for widths in sorted(_ladders(stage, steps), key=_distance_from_sqrt2):
        per_block = np.array([stage.costs[width][RESOURCES.index("macs")] for width in widths])
        wanted = paper_shares(steps) * macs / per_block
        ranges = [range(max(1, math.ceil(depth / 2)), max(1, math.floor(2 * depth)) + 1) for depth in wanted]
        if steps > 1 and wanted[-1] < 1:  # the last slice may pass without a block, as in Steps-ResNet-18 (Table 12)
            ranges[-1] = range(2)
        left -= math.prod(map(len, ranges))
        if left < 0:
            return
        grid = np.meshgrid(*(np.array(depths) for depths in ranges), indexing="ij")
        yield widths, np.stack([axis.ravel() for axis in grid], axis=1)


def _ladders(stage: Stage, steps: int) -> Iterator[tuple[int, ...]]:
    """Growing widths that end at the stage's width.

    With more than four steps, only the two nearest to √2 at each step.
    """

    def extend(ladder: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(ladder) == steps:
            yield ladder
            return
        narrower = [
            width
            for width in stage.costs
            if width * NARROWEST >= stage.width and width * GROWTH[0] <= ladder[0] <= width * GROWTH[1]
        ]
        if steps > 4:
            narrower = sorted(narrower, key=lambda width: _distance_from_sqrt2((width, ladder[0])))[:2]
        for width in narrower:
            yield from extend((width, *ladder))

    yield from extend((stage.width,))


def _distance_from_sqrt2(widths: Sequence[int]) -> float:
    return sum((math.log2(wide / narrow) - 0.5) ** 2 for narrow, wide in pairwise(widths))


def _scores(
    stage: Stage,
    widths: tuple[int, ...],
    depths: Depths,
    costs: NDArray[np.float64],
    target: float,
) -> NDArray[np.float64]:
    macs = RESOURCES.index("macs")
    per_block = np.array([stage.costs[width][macs] for width in widths])
    shares = depths * per_block / costs[:, [macs]]
    shape = (np.log2(np.maximum(shares / paper_shares(len(widths)), 1 / 4)) ** 2).mean(axis=1)
    unused = np.maximum(np.log2(target / costs[:, macs]), 0)
    return shape + 10 * _distance_from_sqrt2(widths) / len(widths) + 4 * unused
