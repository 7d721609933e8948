"""The page's JavaScript, run by Node.js, gives what Python counts, and keeps budgets."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepsnet.cli.models import COSTS as COUNTED
from stepsnet.macro import StepPlan
from stepsnet.models import create_model
from stepsnet.report.explorer import COSTS
from tests.report.explorer import fit
from tests.report.explorer.polynomials import METRICS

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")

ENGINE = COSTS.with_name("engine.js")
DATA = json.loads(COSTS.read_text(encoding="utf-8"))
ROWS = json.loads(COUNTED.read_text(encoding="utf-8"))
PRELUDE = f"""
const engine = require({json.dumps(str(ENGINE))});
const data = JSON.parse(require("fs").readFileSync({json.dumps(str(COSTS))}));
const numbers = (cost) => Object.fromEntries(Object.entries(cost).map(([key, value]) => [key, Number(value)]));
const subjectOf = (one) => typeof one === "string" ? engine.modelSubject(data, one) : engine.configSubject(data, one);
"""


def run(body: str, argument: Any = None) -> Any:
    """What a function of JavaScript with that body returns for `argument`."""
    code = f"{PRELUDE}\nconst run = (argument) => {{ {body} }};\nconst input = require('fs').readFileSync(0);\n"
    code += "console.log(JSON.stringify(run(JSON.parse(input)) ?? null));"
    assert NODE is not None
    text = json.dumps(argument)
    done = subprocess.run([NODE, "-e", code], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def costs(cases: list[tuple[Any, str, int | None]]) -> list[dict[str, int]]:
    """The costs of (model name or configuration, plan, tokens)."""
    body = """return argument.map(([one, text, tokens]) => {
        const subject = subjectOf(one), plan = engine.parsePlan(text);
        const problem = engine.problemOf({...subject, free: true}, plan);
        if (problem) throw new Error(problem);
        return numbers(engine.costOf(subject, plan, tokens ?? subject.tokens));
    });"""
    found: list[dict[str, int]] = run(body, cases)
    return found


def test_every_registered_model_costs_what_is_counted() -> None:
    expected = [{metric: row[metric] for metric in METRICS} for row in ROWS]
    assert costs([(row["name"], row["plan"], None) for row in ROWS]) == expected


def test_random_plans_cost_what_is_counted() -> None:
    rng = random.Random(5)
    cases: list[tuple[Any, str, int | None]] = []
    expected = []
    for name in (name for name in DATA["kinds"] if name.startswith("test_")):
        for _ in range(3):
            options, tokens = fit.random_options(name, rng)
            model = create_model(name, device="meta", **options)
            cases.append((name, model.plan, tokens))
            expected.append(fit.count(model))
    assert costs(cases) == expected


@pytest.mark.parametrize("model_type", DATA["types"])
def test_a_stepped_model_of_transformers_costs_what_is_counted(model_type: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    from stepsnet import stepify

    config = fit.random_config(model_type, random.Random(3))
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())  # as a user pastes it: without defaults
    width = getattr(config, DATA["types"][model_type]["names"]["width"])
    plan = f"{width // 2}x3, {width}x2"
    with torch.device("meta"):
        model = stepify(fit.make_host(config), plan)
    assert costs([(saved, plan, 9)]) == [fit.count_host(model, 9)]


def test_the_other_steps_keep_a_budget() -> None:
    body = """
        const subject = subjectOf("steps_deit_small"), plan = engine.parsePlan("192x12, 272x6, 384x6");
        const budget = engine.costOf(subject, plan).macs;
        plan[0][0].depth = 20;
        const kept = engine.compensate(subject, plan, {stage: 0, step: 0}, "macs", budget);
        const off = (each) => Number(engine.costOf(subject, each).macs) / Number(budget) - 1;
        return {plan: engine.formatPlan(kept), off: off(kept), before: off(plan)};
    """
    found = run(body)
    assert found["plan"].startswith("192x20, ")
    assert found["before"] > 0.15
    assert abs(found["off"]) < 0.03


@pytest.mark.parametrize(("name", "steps"), [("deit_small", 3), ("deit_base", 3), ("transformer_63m", 3)])
def test_adding_steps_is_the_papers_rule(name: str, steps: int) -> None:
    body = """
        const subject = subjectOf(argument[0]);
        let plan = subject.plain;
        for (let step = 1; step < argument[1]; step++) plan = engine.addStep(subject, plan, 0);
        return engine.formatPlan(plan);
    """
    plain = StepPlan.parse(DATA["models"][name]["plain"])
    expected = StepPlan.default(plain.width, plain.blocks, steps, lambda width: 8 * round(width / 8))
    assert run(body, [name, steps]) == str(expected)


def test_the_twin_has_as_many_blocks_and_no_more_macs() -> None:
    body = """
        const subject = subjectOf("steps_deit_small");
        const twin = engine.sameDepthTwin(subject, subject.plan);
        return {plan: engine.formatPlan(twin), cost: numbers(engine.costOf(subject, twin))};
    """
    found = run(body)
    assert found["plan"] == "264x24"
    counted = create_model("deit_small", embed_dim=264, plan=found["plan"], device="meta")
    assert found["cost"] == fit.count(counted)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ("192x12, 384x6; 10x1", "this model has 1 stages, the plan 2"),
        ("192x12, 192x6, 384x6", "every step must be wider than the one before, not 192 and 192"),
        ("192x12, 272x6", "the plan must end at width 384"),
        ("0x12, 384x6", "width 0 is out of range"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_reason(plan: str, problem: str) -> None:
    assert problem in run(
        'return engine.problemOf(subjectOf("steps_deit_small"), engine.parsePlan(argument));', plan
    )


def test_an_unknown_model_type_is_refused_with_the_known_ones() -> None:
    body = 'try { subjectOf({model_type: "mamba"}); } catch (error) { return error.message; }'
    assert run(body) == "model_type is 'mamba'; known here are llama, mistral, qwen2, qwen3, gpt2, vit"
