"""The doctor's page: whole, self-contained, and honest about numbers it has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stepsnet
from stepsnet.analysis.doctor import diagnose
from stepsnet.report.doctor import doctor_page, write_doctor_page


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    torch.manual_seed(0)
    model = stepsnet.create_model("test_steps_deit")
    return diagnose(model, torch.randn(2, 3, 32, 32), name="patient <1>", weights="as initialised", trained=False).to_json()


def test_the_page_holds_everything_and_loads_nothing(document: dict[str, Any], tmp_path: Path) -> None:
    page = write_doctor_page(tmp_path / "doctor.html", document).read_text(encoding="utf-8")
    assert "patient &lt;1&gt;" in page
    assert page.count("<svg") == 6
    assert "No finding" in page
    assert "net.joins.1" in page
    assert not any(word in page for word in ("<script", "src=", "href=", "url("))


def test_findings_stand_first_with_their_rule_and_command(document: dict[str, Any]) -> None:
    finding = {"name": "slice-drowned", "severity": "severe", "what": "a <small> slice", "rule": "ratio at least 0.1", "value": 0.0123,
               "limit": 0.1, "advice": "match it", "change": {"join": "matched"}, "command": 'join="matched"'}  # fmt: skip
    page = doctor_page({**document, "findings": [finding]})
    for word in ("a &lt;small&gt; slice", "ratio at least 0.1", "0.0123", "match it", "join=&quot;matched&quot;"):
        assert word in page
    assert page.index("slice-drowned") < page.index("<svg")


def test_a_run_shows_its_curves(document: dict[str, Any]) -> None:
    curves: dict[str, list[dict[str, Any]]] = {
        "metrics": [{"step": step, "loss": 2.0 / step, "grad_norm": None if step == 3 else 1.0} for step in range(1, 9)],
        "gamma": [{"step": 4, "gamma": [0.5] * 8}],
    }
    page = doctor_page(document, curves)
    assert page.count("<svg") == 8
    assert "at its lowest, step 4" in page


def test_a_number_that_is_not_there_is_said_so(document: dict[str, Any]) -> None:
    page = doctor_page({**document, "blocks": [{**block, "gamma": None, "sigma": None} for block in document["blocks"]]})
    assert "not finite" in page
