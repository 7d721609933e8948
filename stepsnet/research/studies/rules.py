"""How a comparison is decided: the one rule of all studies, written before any of them ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepsnet.research.studies.results import Measured, Results, mean_and_error

LEAST = 0.02
"""Nats: a smaller difference of losses is of no interest, however certain."""
ERRORS = 2.0

RULE = (
    f"A hypothesis holds if the difference of the means over seeds (validation loss) is above {ERRORS:g} of its standard errors and above "
    f"{LEAST:g} nats; it is refuted if that is true the other way round; otherwise nothing was shown. A failed or missing cell is "
    "reported and its comparison is not made."
)

HOLDS, REFUTED, NOTHING, NOT_MADE = "holds", "refuted", "nothing was shown", "not compared"


@dataclass(frozen=True)
class Outcome:
    """What the rule says to one hypothesis. The difference is positive where it speaks for it."""

    hypothesis: str
    verdict: str
    difference: float = math.nan
    error: float = math.nan

    def in_words(self) -> str:
        figures = f" ({self.difference:+.3f} ± {self.error:.3f} nats)" if math.isfinite(self.difference) else ""
        return f"{self.hypothesis}: {self.verdict}{figures}"


def judge(hypothesis: str, difference: float, error: float) -> Outcome:
    """The rule. A single seed has no standard error, and shows nothing."""
    sure = abs(difference) > max(ERRORS * error, LEAST) and math.isfinite(error)
    verdict = NOTHING if not sure else HOLDS if difference > 0 else REFUTED
    return Outcome(hypothesis, verdict, difference, error)


def contrast(
    results: Results, hypothesis: str, *, better: Sequence[str], worse: Sequence[str],
    what: Callable[[Measured], float] = lambda cell: cell.loss,
) -> Outcome:
    """The losses of the arms `worse` less those of `better`, seeds independent: the squares of the standard errors add up."""
    values = [(sign, results.values(key, what)) for keys, sign in ((better, -1.0), (worse, 1.0)) for key in keys]
    if any(found is None for _, found in values):
        return Outcome(hypothesis, NOT_MADE)
    parts = [(sign, *mean_and_error(found)) for sign, found in values if found is not None]
    return judge(hypothesis, sum(sign * centre for sign, centre, _ in parts), math.sqrt(sum(error**2 for *_, error in parts)))


def paired(results: Results, hypothesis: str, key: str, difference: Callable[[Measured], float]) -> Outcome:
    """A difference within each cell of one arm, such as between two ways to damage one trained model."""
    values = results.values(key, difference)
    return judge(hypothesis, *mean_and_error(values)) if values else Outcome(hypothesis, NOT_MADE)
