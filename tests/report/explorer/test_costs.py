"""costs.json of the explorer has what Python counts: for every registered model and for random plans of all kinds."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from stepsnet.cli.models import COSTS as COUNTED
from stepsnet.macro import StepPlan
from stepsnet.models import create_model, list_models
from stepsnet.report.explorer import COSTS
from tests.report.explorer import fit
from tests.report.explorer.polynomials import METRICS, cost, solve

DATA = json.loads(COSTS.read_text(encoding="utf-8"))
ROWS = {row["name"]: row for row in json.loads(COUNTED.read_text(encoding="utf-8"))}  # tests/models checks these


def test_every_registered_model_is_in_the_explorer() -> None:
    assert sorted(DATA["models"]) == list_models()


@pytest.mark.parametrize("name", DATA["models"])
def test_a_registered_model_costs_what_is_counted(name: str) -> None:
    assert evaluated(name, ROWS[name]["plan"]) == {metric: ROWS[name][metric] for metric in METRICS}
    assert DATA["models"][name]["plan"] == ROWS[name]["plan"]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", DATA["kinds"])
def test_a_random_plan_costs_what_is_counted(name: str, seed: int) -> None:
    options, tokens = fit.random_options(name, random.Random(seed))
    model = create_model(name, device="meta", **options)
    assert evaluated(name, model.plan, tokens) == fit.count(model)


@pytest.mark.parametrize("model_type", DATA["types"])
def test_a_model_of_transformers_costs_what_is_counted(model_type: str) -> None:
    """Of one step; test_engine.py has stepped ones."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    config, tokens = fit.random_config(model_type, random.Random(3)), 9
    inside, outside = fit.host_variables(config, tokens)
    expected = fit.count_host(fit.make_host(config), tokens)
    assert cost(DATA["types"][model_type], [[(inside, expected["blocks"])]], outside) == expected


def test_tables_are_those_of_the_blocks() -> None:
    assert DATA["tables"] == fit.tables()


def test_names_and_defaults_are_those_of_transformers() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    for model_type, kind in DATA["types"].items():
        rules = fit.rules_of(model_type)
        assert {key: kind[key] for key in rules} == rules


def test_counts_that_are_no_polynomial_are_refused() -> None:
    with pytest.raises(ValueError, match="do not describe"):
        solve([[1], [2], [3]], [1, 4, 9])


def evaluated(name: str, plan: str, tokens: int | None = None) -> dict[str, int]:
    model = DATA["models"][name]
    table = DATA["tables"].get(model["family"], {})
    plans = [StepPlan.parse(stage) for stage in plan.split(";")]
    stages, outside = fit.variables_of(plans, table, tokens or model["tokens"] or 0)
    found: dict[str, Any] = cost(DATA["kinds"][model["kind"]], stages, outside)
    return found
