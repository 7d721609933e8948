"""The demo: a fair comparison, run in a small form, with a report of its result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepsnet.research.studies import demo
from stepsnet.research.studies.results import CellResult
from stepsnet.research.studies.runner import StudyFiles, run_study


def found(*networks: tuple[str, float, float]) -> dict[str, Any]:
    made = [
        {"key": key, "label": f"the {key}", "valid": {"top1": top1}, "train_loss": loss} for key, top1, loss in networks
    ]
    ranked = sorted(made, key=lambda network: -network["valid"]["top1"])  # type: ignore[index]
    return {"seed": 11, "networks": made, "ranking": [network["key"] for network in ranked]}


def test_the_networks_cost_the_same() -> None:
    baseline, *others = [arm.cost() for arm in demo.arms()]
    for cost in others:
        assert cost.blocks == baseline.blocks == 48
        assert cost.params == pytest.approx(baseline.params, rel=0.03)
        assert cost.macs == pytest.approx(baseline.macs, rel=0.05)


def test_the_networks_differ_only_in_plan_and_join() -> None:
    configs = [arm.config(4) for arm in demo.arms()]
    same = [replace(config, plan="", join="", model_args={**config.model_args, "embed_dim": 0}) for config in configs]
    assert same[0] == same[1] == same[2]
    assert [config.join for config in configs] == ["plain", "plain", "matched_grad"]


class Steps:
    def __init__(self) -> None:
        self.total = 0
        self.cells: list[str] = []

    def steps(self, amount: int, note: str) -> None:
        self.total += amount

    def ended(self, found: CellResult) -> None:
        self.cells.append(found.cell)


@pytest.mark.timeout(600)
def test_a_small_demo_runs_as_a_study_and_writes_its_report(tmp_path: Path) -> None:
    place = StudyFiles(tmp_path, demo.demo_study((3,), demo.arms(4, "8x2", "4x1, 8x1")), "quick")
    progress = Steps()
    results = run_study(place, roots={}, workers=3, progress=progress).results
    assert sorted(progress.cells) == ["demo-matched_grad-2-s3", "demo-residual-2-s3", "demo-steps-2-s3"]
    summary = demo.summary(results, 1.0)
    assert [one["key"] for one in summary["networks"]] == ["residual", "steps", "matched_grad"]
    for one in summary["networks"]:
        assert (one["blocks"], summary["iters"], summary["seed"]) == (2, 4, 3)
        assert 0 <= one["valid"]["top1"] <= 1
        assert one["gamma_late"] > 0
        assert one["seconds"] > 0
    text = demo.write_report(place, summary).read_text()
    assert text.count('stroke-linejoin="round"') >= 6  # lines of charts
    assert "4x1, 8x1" in text
    assert json.loads((tmp_path / "demo.json").read_text())["seed"] == 3
    assert (place.pool / "demo-steps-2-s3" / "report.html").is_file()


def test_the_findings_report_a_result_that_differs_from_the_confirmation() -> None:
    sentence, verdict = demo.findings(found(("residual", 0.9, 1.0), ("steps", 0.5, 1.0), ("matched_grad", 0.7, 1.0)))
    places = "first the residual (90.0 %), then the matched_grad (70.0 %), then the steps (50.0 %)"
    assert sentence == f"Validation accuracy under seed 11: {places}."
    assert verdict.startswith("This differs from the confirmation")


def test_the_findings_report_a_result_that_equals_the_confirmation() -> None:
    order = found(("residual", 0.4, 1.0), ("steps", 0.3, 1.0), ("matched_grad", 0.7, 1.0))
    assert demo.findings(order)[1].startswith("As in the confirmation")
