"""Does the doctor's diagnosis early in training predict which network ends with the lower loss?

cell.py records the doctor's measurements at the start and once more, after 5 % of the steps in the evidence studies.
`prediction_table` compares every pair of networks of equal cost whose losses differ clearly: does each measurement
order the pair as the losses do?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from statistics import mean
from typing import Any

from stepsnet.report.table import Table
from stepsnet.research.studies.results import HOLDS, REFUTED, Results, contrast, number
from stepsnet.research.studies.study import Arm

SEVERITY = {"severe": 3, "warning": 2, "note": 0}
BETTER: dict[str, tuple[str, Callable[[float], float]]] = {
    "gamma": ("median γ is higher", lambda value: value),
    "update": ("the largest update is smaller", lambda value: -value),
    "gradient_span": ("‖∂L/∂z‖ of first and last block are closer", lambda value: -abs(math.log(value))),
    "starved": ("the least trained block gets more gradient", lambda value: value),
    "idle_share": ("fewer blocks are idle", lambda value: -value),
    "smallest_join": ("sizes at the worst join are closer", lambda value: -abs(math.log(value))),
    "rank": ("the effective rank of the last state is higher", lambda value: value),
    "largest": ("the largest |z| is smaller", lambda value: -value),
}
"""For each number: what the doctor takes for better, and a score that is higher then."""


Pair = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""The lines of doctor.jsonl of the better and of the worse network at one of the two moments, one line per seed."""


def prediction_table(*studies: tuple[Results, Callable[[Arm], object]]) -> Iterator[Table]:
    """How often each measurement orders two networks of equal cost as their final losses do; none if no pair differs.

    Each study is given by its results and by what networks of equal cost have in common.
    Only pairs count whose losses differ by the rule of the studies, and for which the measurement differs. A pair that
    is in two studies counts once.
    """
    moments = [list({key: pair for study in studies for key, pair in clear_pairs(*study, moment)}.values())
               for moment in (0, 1)]  # fmt: skip
    if any(moments):
        rows = [[better, *(_share(_orders(pairs, name, score)) for pairs in moments)]
                for name, (better, score) in BETTER.items()]  # fmt: skip
        findings = sorted({name for pairs in moments for pair in pairs for lines in pair for line in lines
                           for name in line["findings"]})  # fmt: skip
        rows += [[f"`{name}` is found less often", *(_share(_without(pairs, name)) for pairs in moments)]
                 for name in findings]  # fmt: skip
        rows.append(["the doctor finds less", *(_share(_verdicts(pairs)) for pairs in moments)])
        title = "Does the diagnosis predict the lower loss? Pairs of equal cost with clearly different losses"
        header = ["the better network is the one where", "right at the start", "right after some steps"]
        yield Table(header, rows, title)


def clear_pairs(
    results: Results, equal_cost: Callable[[Arm], object], moment: int
) -> Iterator[tuple[frozenset[str], Pair]]:
    """The pairs whose losses differ by the rule, the better network first, with the names of their arms."""
    for one, other in combinations(results.size.arms, 2):
        if equal_cost(one) != equal_cost(other):
            continue
        verdict = contrast(results, "", better=[one.key], worse=[other.key]).verdict
        lines = [[cell.doctor[moment] for cell in results.finished(arm) if len(cell.doctor) > moment]
                 for arm in (one, other)]  # fmt: skip
        if verdict in (HOLDS, REFUTED) and all(lines):
            pair = (lines[0], lines[1]) if verdict == HOLDS else (lines[1], lines[0])
            yield frozenset((one.key, other.key)), pair


def _orders(pairs: Iterable[Pair], name: str, score: Callable[[float], float]) -> Iterator[bool]:
    for pair in pairs:
        good, bad = (mean(number(line["numbers"][name]) for line in lines) for lines in pair)
        if math.isfinite(good) and math.isfinite(bad) and good != bad:
            yield score(good) > score(bad)


def _without(pairs: Iterable[Pair], finding: str) -> Iterator[bool]:
    for pair in pairs:
        good, bad = (mean(finding in line["findings"] for line in lines) for lines in pair)
        if good != bad:
            yield good < bad


def _verdicts(pairs: Iterable[Pair]) -> Iterator[bool]:
    for pair in pairs:
        good, bad = (mean(sum(SEVERITY[kind] for kind in line["findings"].values()) for line in lines)
                     for lines in pair)  # fmt: skip
        if good != bad:
            yield good < bad


def _share(right: Iterable[bool]) -> str:
    found = list(right)
    return f"{sum(found)} of {len(found)}" if found else "–"
