"""Charts of analysis results, and the page of `stepsnet doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stepsnet
from stepsnet.analysis import (
    diagnose,
    drop_blocks,
    gradient_flow,
    mask_paths,
    shortcut_ratio,
    step_contribution,
    width_use,
)
from stepsnet.report.analysis import (
    contribution_chart,
    doctor_page,
    drops_chart,
    gradient_chart,
    paths_chart,
    shortcut_chart,
    width_chart,
    write_doctor_page,
)
from stepsnet.report.chart import BarChart, LineChart


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return stepsnet.create_model("test_steps_swin")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_results_over_depth_are_lines_with_a_gap_between_stages(net: torch.nn.Module, images: torch.Tensor) -> None:
    found = shortcut_ratio(net, images)
    stages = len(set(found.stage))
    flow, width = gradient_flow(net, images), width_use(net, images)
    for chart, count in ((shortcut_chart(found, "initialised"), 4), (gradient_chart(flow), 4), (width_chart(width), 3)):
        assert isinstance(chart, LineChart)
        assert len(chart.lines) == count
        assert all(list(line.y).count(None) == stages - 1 for line in chart.lines)
    assert ">initialised<" in shortcut_chart(found, "initialised").document()
    assert [value for value in shortcut_chart(found).lines[0].y if value is not None] == found.gamma  # type: ignore[attr-defined]


def test_results_by_step_are_bars(net: torch.nn.Module, images: torch.Tensor) -> None:
    dropped = drop_blocks(net, [images], lambda model, batch: (float(model(batch).mean()), 1.0))
    contribution = step_contribution(net, images)
    for chart, steps in (
        (contribution_chart(contribution), contribution.steps),
        (drops_chart(dropped, "top1"), dropped.steps),
    ):
        assert isinstance(chart, BarChart)
        assert len(chart.labels) == len(chart.values) == len(steps)


def test_masked_paths_are_two_lines(net: torch.nn.Module, images: torch.Tensor) -> None:
    chart = paths_chart(mask_paths(net, [images], lambda model, batch: (float(model(batch).mean()), 1.0), [1]), "top1")
    assert isinstance(chart, LineChart)
    assert (len(chart.lines), chart.y_label) == (2, "top1")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    torch.manual_seed(0)
    model = stepsnet.create_model("test_steps_deit")
    return diagnose(
        model, torch.randn(2, 3, 32, 32), name="model <1>", weights="as initialised", trained=False
    ).to_json()


def test_the_page_is_complete_and_loads_nothing(document: dict[str, Any], tmp_path: Path) -> None:
    page = write_doctor_page(tmp_path / "doctor.html", document).read_text(encoding="utf-8")
    assert "model &lt;1&gt;" in page
    assert page.count("<svg") == 6
    assert "No problems found." in page
    assert "net.joins.1" in page
    assert not any(word in page for word in ("src=", "href=", "url("))


def test_findings_come_first_with_rule_and_command(document: dict[str, Any]) -> None:
    finding = {"name": "new-channels-too-small", "severity": "severe", "what": "a <small> slice",
               "rule": "ratio at least 0.1", "value": 0.0123, "limit": 0.1, "advice": "match it",
               "change": {"join": "plain"}, "command": 'join="plain"'}  # fmt: skip
    page = doctor_page({**document, "findings": [finding]})
    for word in ("a &lt;small&gt; slice", "ratio at least 0.1", "0.0123", "match it", "join=&quot;plain&quot;"):
        assert word in page
    assert page.index("new-channels-too-small") < page.index("<svg")
    assert '<button type="button">Copy</button>' in page


def test_a_run_shows_its_curves(document: dict[str, Any]) -> None:
    curves: dict[str, list[dict[str, Any]]] = {
        "metrics": [
            {"step": step, "loss": 2.0 / step, "grad_norm": None if step == 3 else 1.0} for step in range(1, 9)
        ],
        "gamma": [{"step": 4, "gamma": [0.5] * 8}],
    }
    page = doctor_page(document, curves)
    assert page.count("<svg") == 8
    assert "lowest, step 4" in page


def test_a_missing_number_is_shown_as_not_finite(document: dict[str, Any]) -> None:
    page = doctor_page(
        {**document, "blocks": [{**block, "gamma": None, "sigma": None} for block in document["blocks"]]}
    )
    assert "not finite" in page
