"""The comparison of deepened and plain models: the same extra compute, finished parts are not run again, the rule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepsnet.data.text.windows import TextStore
from stepsnet.errors import UsageError
from stepsnet.research import deepening


def texts() -> tuple[TextStore, TextStore]:
    numbers = np.random.default_rng(0).integers(97, 123, 4000).astype(np.uint8)
    return TextStore([numbers[:3000]]), TextStore([numbers[3000:]])


def test_parts_that_are_done_are_not_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    first = deepening.run(texts(), tmp_path, deepening.QUICK, said.append)
    assert len(said) == 9
    assert first["deepened-s0"]["steps"] < first["plain-s0"]["steps"] == deepening.QUICK.more_steps
    assert deepening.run(texts(), tmp_path, deepening.QUICK, said.append) == first
    assert len(said) == 9
    assert first["outcome"] in deepening.table(first)
    assert json.loads((tmp_path / "result.json").read_text())["mean"] == pytest.approx(first["mean"])
    with pytest.raises(UsageError, match="results of another plan"):
        deepening.run(texts(), tmp_path, deepening.Plan())


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [((-0.1, -0.2, -0.1), "depth helped"), ((0.1, 0.2, 0.1), "depth hurt"), ((-0.1, 0.2, 0.1), "inconclusive")],
)
def test_the_rule_asks_all_seeds(differences: tuple[float, ...], outcome: str) -> None:
    cells = {f"plain-s{seed}": {"loss": 1.0} for seed in deepening.SEEDS}
    cells |= {f"deepened-s{seed}": {"loss": 1.0 + change} for seed, change in enumerate(differences)}
    assert deepening.judge(cells)["outcome"] == outcome
