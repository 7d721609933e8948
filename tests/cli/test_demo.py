"""`stepsnet demo` on cells that have already been trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepsnet.cli.main import main
from stepsnet.research.studies import demo, runner
from stepsnet.research.studies.runner import Ended, StudyFiles, collect
from tests.research.studies import toy

TOP1 = {"residual": 0.3, "steps": 0.6, "matched_grad": 0.75}


def pretend_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the training of the demo by made-up cells."""

    def run_study(place: StudyFiles, **options: Any) -> Ended:
        for cell in place.chosen().cells():
            folder = toy.pretend(place.pool, cell, 1.25)
            result = {"step": 5, "loss": 1.25, "top1": TOP1[cell.arm.network]}
            (folder / "result.json").write_text(json.dumps(result))
            options["progress"].steps(5, cell.id)
        return Ended(collect(place))

    monkeypatch.setattr(runner, "run_study", run_study)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    pretend_demo(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_has_a_row_for_each_network(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    for arm in demo.arms():
        row = next(line for line in said.splitlines() if line.strip().startswith(arm.label))
        assert f"{100 * TOP1[arm.network]:.1f} %" in row
        assert "0.61" in row
        assert "10 s" in row
    assert str(Path("runs/demo-1/report.html")) in said
    assert (trained / "runs/demo-1/report.html").is_file()


@pytest.mark.usefixtures("trained")
def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "--seed", "9", "--out", "here"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seed"] == 9
    assert found["ranking"] == ["matched_grad", "steps", "residual"]
    assert [network["key"] for network in found["networks"]] == ["residual", "steps", "matched_grad"]
    assert found["networks"][0]["params"] == 610_922
    assert found["report"] == str(Path("here/report.html"))


@pytest.mark.usefixtures("trained")
def test_equal_accuracies_are_ordered_by_training_loss(capsys: pytest.CaptureFixture[str]) -> None:
    TOP1_EQUAL = {"residual": 0.5, "steps": 0.7, "matched_grad": 0.7}
    place = StudyFiles(Path("equal"), demo.demo_study((0,), demo.arms()), "quick")
    for cell in place.chosen().cells():
        folder = toy.pretend(place.pool, cell, 0.3 if cell.arm.network == "matched_grad" else 0.4)
        result = {"step": 5, "loss": 1.0, "top1": TOP1_EQUAL[cell.arm.network]}
        (folder / "result.json").write_text(json.dumps(result))
    assert demo.summary(collect(place), 1.0)["ranking"] == ["matched_grad", "steps", "residual"]


@pytest.mark.usefixtures("trained")
def test_a_second_demo_takes_the_next_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == main(["demo"]) == 0
    assert str(Path("runs/demo-2/report.html")) in capsys.readouterr().out


@pytest.mark.usefixtures("trained")
def test_a_demo_with_another_seed_keeps_the_report_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seed", "7", "--out", "here"]) == 0
    before = Path("here/report.html").read_bytes()
    assert main(["demo", "--seed", "8", "--out", "here"]) == 2
    assert "--out here has a demo with another seed than 8" in capsys.readouterr().err
    assert Path("here/report.html").read_bytes() == before


@pytest.mark.usefixtures("trained")
def test_the_folder_of_a_demo_can_be_continued(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", "here"]) == main(["demo", "--out", "here"]) == 0
    assert str(Path("here/report.html")) in capsys.readouterr().out


@pytest.mark.usefixtures("trained")
def test_a_stopped_demo_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run_study", lambda place, **_: Ended(collect(place), 2))
    assert main(["demo", "--seed", "3"]) == 130
    assert f"stepsnet demo --seed 3 --out {Path('runs/demo-1')}" in capsys.readouterr().err


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seed", "-1"], "--seed: '-1' is not a whole number from 0"),
        (["--out", "full"], "full is not an empty folder"),
    ],
)
def test_usage_errors_are_reported(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["demo", *words]) == 2
    assert sentence in capsys.readouterr().err
