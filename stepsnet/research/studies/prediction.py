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
from typing import Any, NamedTuple

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


JOINS = "new-channels-"
"""Begins the names of findings about joins. Their advice is another join."""
POST_NORM = "model_args.residual=deepnorm"


class Pair(NamedTuple):
    """The lines of doctor.jsonl of two networks at one of the two moments, one line per seed."""

    better: list[dict[str, Any]]
    worse: list[dict[str, Any]]
    arms: tuple[Arm, Arm]

    def only_joins(self) -> bool:
        """They differ in nothing but their joins, and in the learning rates found for them."""
        one, other = ({word for word in arm.words if not word.startswith("join=")} for arm in self.arms)
        return one == other and self.arms[0].setting == self.arms[1].setting

    def pre_norm(self) -> bool:
        """Neither normalises the state itself, which no rule of the doctor expects."""
        return all(POST_NORM not in arm.words for arm in self.arms)


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
        findings = sorted({name for pairs in moments for pair in pairs for line in (*pair.better, *pair.worse)
                           for name in line["findings"]})  # fmt: skip
        for name in findings:
            rows.append([f"`{name}` is found less often", *(_share(_without(pairs, name)) for pairs in moments)])
            if name.startswith(JOINS):
                alike = (filter(Pair.only_joins, pairs) for pairs in moments)
                rows.append(["the same, if only the joins differ", *(_share(_without(pairs, name)) for pairs in alike)])
        rows.append(["the doctor finds less", *(_share(_verdicts(pairs)) for pairs in moments)])
        if not all(pair.pre_norm() for pairs in moments for pair in pairs):
            usual = [list(filter(Pair.pre_norm, pairs)) for pairs in moments]
            rows.append(["the same, without DeepNorm", *(_share(_verdicts(pairs)) for pairs in usual)])
            others = (_share(_verdicts(pairs, joins=False)) for pairs in usual)
            rows.append(["the same, without DeepNorm and findings about joins", *others])
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
            better, worse = lines if verdict == HOLDS else reversed(lines)
            yield frozenset((one.key, other.key)), Pair(better, worse, (one, other))


def _orders(pairs: Iterable[Pair], name: str, score: Callable[[float], float]) -> Iterator[bool]:
    for pair in pairs:
        good, bad = (mean(number(line["numbers"][name]) for line in lines) for lines in (pair.better, pair.worse))
        if math.isfinite(good) and math.isfinite(bad) and good != bad:
            yield score(good) > score(bad)


def _without(pairs: Iterable[Pair], finding: str) -> Iterator[bool]:
    for pair in pairs:
        good, bad = (mean(finding in line["findings"] for line in lines) for lines in (pair.better, pair.worse))
        if good != bad:
            yield good < bad


def _verdicts(pairs: Iterable[Pair], *, joins: bool = True) -> Iterator[bool]:
    def weight(line: dict[str, Any]) -> int:
        return sum(SEVERITY[kind] for name, kind in line["findings"].items() if joins or not name.startswith(JOINS))

    for pair in pairs:
        good, bad = (mean(map(weight, lines)) for lines in (pair.better, pair.worse))
        if good != bad:
            yield good < bad


def _share(right: Iterable[bool]) -> str:
    found = list(right)
    return f"{sum(found)} of {len(found)}" if found else "–"
