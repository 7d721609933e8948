"""costs.json of the explorer: what a network of any plan costs, as polynomials that are solved from counted networks.

A kind of network is a family at one input size, or a model type of transformers. Its cost is that of its blocks and of
what is outside the plans, each a sum of monomials with exact coefficients: `{"ww": 12, "w": 13}` is 12w² + 13w.

    w  width of a block                                     T  tokens
    h  heads, from a table                                  m  hidden width of the MLP, from a table or in proportion
    q, k, d  width of queries, of keys, of one head         A, B  1 with biases in attention, in the MLP
    1 2 3 4  width of a stage, outside the blocks           V, P, L  vocabulary, positions, labels
    u  1 if the head has weights of its own                 x  values in one image patch

The explorer's JavaScript evaluates them. fit.py writes the file; test_costs.py compares it with counted networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any, TypeAlias

METRICS = ("blocks", "layers", "params", "macs", "activations", "kv_cache")

Polynomial: TypeAlias = dict[str, int]
Variables: TypeAlias = Mapping[str, int]
Steps: TypeAlias = Sequence[tuple[Variables, int]]
"""The variables of a step's blocks, and how many blocks it has."""


def cost(kind: Mapping[str, Any], stages: Sequence[Steps], outside: Variables) -> dict[str, int]:
    """All metrics of a network of that kind; `outside` are the variables of what is in no plan."""
    found = {}
    for metric in kind["outside"]:
        inside = (
            depth * value(stage[metric], variables)
            for stage, steps in zip(kind["stages"], stages, strict=True)
            for variables, depth in steps
        )
        found[metric] = sum(inside) + value(kind["outside"][metric], outside)
    return found


def value(polynomial: Mapping[str, int], variables: Variables) -> int:
    return sum(coefficient * monomial(letters, variables) for letters, coefficient in polynomial.items())


def monomial(letters: str, variables: Variables) -> int:
    return prod(variables[letter] for letter in letters)


def solve(rows: Sequence[Sequence[int]], results: Iterable[int]) -> list[int]:
    """Whole numbers x with rows · x = results. Of dependent columns the later ones get 0."""
    work = [[*map(Fraction, row), Fraction(result)] for row, result in zip(rows, results, strict=True)]
    columns = len(rows[0])
    pivots: list[int] = []
    for column in range(columns):
        top = len(pivots)
        found = next((index for index in range(top, len(work)) if work[index][column]), None)
        if found is None:
            continue
        work[top], work[found] = work[found], work[top]
        pivot = [entry / work[top][column] for entry in work[top]]
        work[top] = pivot
        for index, row in enumerate(work):
            if index != top and row[column]:
                factor = row[column]
                work[index] = [entry - factor * other for entry, other in zip(row, pivot, strict=True)]
        pivots.append(column)
    if any(row[-1] for row in work[len(pivots) :]):
        raise ValueError("the monomials do not describe the counts")
    solution = [Fraction(0)] * columns
    for row, column in zip(work, pivots, strict=False):
        solution[column] = row[-1]
    if any(entry.denominator != 1 for entry in solution):
        raise ValueError(f"the coefficients are not whole numbers: {solution}")
    return [int(entry) for entry in solution]


def fit(
    samples: Sequence[tuple[Sequence[Steps], Variables, Mapping[str, int]]],
    inside: Mapping[str, Sequence[str]],
    outside: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The kind whose polynomials give every sample's counts: (steps of each stage, variables outside, counts).

    `inside` and `outside` are the monomials of each metric, the preferred ones first.
    """
    count = len(samples[0][0])
    kind: dict[str, Any] = {"stages": [{} for _ in range(count)], "outside": {}}
    for metric, letters in inside.items():
        rows = [
            [sum(depth * monomial(m, variables) for variables, depth in steps) for steps in stages for m in letters]
            + [monomial(m, others) for m in outside[metric]]
            for stages, others, _ in samples
        ]
        solution = solve(rows, [counts[metric] for *_, counts in samples])
        for number, stage in enumerate(kind["stages"]):
            stage[metric] = _nonzero(letters, solution[number * len(letters) :])
        kind["outside"][metric] = _nonzero(outside[metric], solution[count * len(letters) :])
    return kind


def _nonzero(letters: Sequence[str], coefficients: Sequence[int]) -> Polynomial:
    return {m: coefficient for m, coefficient in zip(letters, coefficients, strict=False) if coefficient}
