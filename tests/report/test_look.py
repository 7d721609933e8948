"""Every kind of page in a real browser, from top to bottom, as wide as a phone and as a desktop, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stepsnet
from stepsnet.analysis.doctor import diagnose
from stepsnet.report.analysis import write_doctor_page
from stepsnet.report.bench import bench_report
from stepsnet.report.explorer import explorer_page
from stepsnet.report.run import run_report
from stepsnet.research.studies.pages import study_page
from stepsnet.research.studies.runner import StudyFiles, collect
from stepsnet.research.studies.study import Cell
from tests.report.browser import NEEDS_CHROMIUM, SCHEMES, defects
from tests.report.test_bench import MACHINE, made_up_zoo
from tests.report.test_run import made_up_run
from tests.research.studies import toy

pytestmark = NEEDS_CHROMIUM
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    run_report(made_up_run(folder / "run"))
    model = stepsnet.create_model("test_steps_deit")
    diagnosis = diagnose(
        model, torch.randn(2, 3, 32, 32), name="test_steps_deit", weights="as initialised", trained=False
    )
    write_doctor_page(folder / "doctor.html", diagnosis.to_json())
    arms = [toy.arm("plain"), toy.arm("steps")]
    for arm, loss in zip(arms, (2.0, 1.0), strict=True):
        toy.pretend(folder / "cells", Cell(arm, 0), loss)
    place = StudyFiles(folder, toy.study(*arms), "quick")
    study_page(place, collect(place)).write(folder / "study")
    bench_report({**made_up_zoo(), "machine": MACHINE, "command": "stepsnet bench speed"}, folder / "bench")
    (folder / "explorer.html").write_text(explorer_page(), encoding="utf-8")
    return folder


@every_scheme
def test_no_page_is_too_wide_cut_overprinted_or_too_faint(pages: Path, scheme: str) -> None:
    shown = ["run/report.html", "doctor.html", "study/report.html", "bench/report.html", "explorer.html"]
    assert defects(pages, shown, scheme) == {}


def test_each_defect_is_found(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        """<!doctype html><body style="background: #ffffff"><p style="width: 2000px">broad</p>
        <p style="white-space: nowrap; position: relative; left: -50px">left of it</p>
        <p style="overflow: hidden; width: 20px; white-space: nowrap">a long text</p><p style="color: #bbbbbb">faint</p>
        <figure><figcaption><b>Title</b></figcaption><svg width="200" height="100"><text x="20" y="20">Title</text>
        <text x="25" y="22">over</text><text x="180" y="60">beyond</text><text x="20" y="80" font-size="5">tiny</text>
        </svg></figure></body>""", encoding="utf-8")  # fmt: skip
    for wrong in defects(tmp_path, ["bad.html"], "light").values():
        assert [words for words in wrong if not words.startswith("wide")] == [
            "outside: left of it", "cut: a long text", "too faint: faint", "too small: tiny",
            "overprinted: Title, over", "outside its chart: beyond", "printed twice: Title",
        ]  # fmt: skip
        assert any(words.startswith("wide: 20") for words in wrong)
