"""`stepsnet study` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsnet.cli.main import main
from stepsnet.research.studies import runner
from stepsnet.research.studies.ablations import REVERSE
from tests.research.studies import toy


def test_the_list_names_every_study_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--list"]) == 0
    words = capsys.readouterr().out
    assert all(name in words for name in ("fixed_width", "long", "paper", "join", "stages"))


def test_a_dry_run_shows_what_it_would_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "reverse", "--dry-run", "--json", "--out", str(tmp_path)]) == 0
    plain, forward, backward = json.loads(capsys.readouterr().out)
    assert 0 < plain["core_hours"] < 1
    assert len(json.loads((tmp_path / "step_times.json").read_text())) == 3
    assert plain["arm"] == "digits-1steps-6"
    assert backward["macs"] == forward["macs"]
    assert "macro=reverse" in backward["words"]


def test_a_report_says_what_the_rule_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = {"1steps": 1.0, "3steps": 0.8, "3steps_reverse": 0.9}
    for cell in REVERSE.sizes["quick"].cells():
        toy.pretend(tmp_path / "cells", cell, losses[cell.arm.network] + 0.001 * cell.seed)
    assert main(["study", "reverse", "--report", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [outcome["verdict"] for outcome in found["outcomes"]] == ["holds", "holds"]
    assert found["finished"] == 9
    assert main(["study", "reverse", "--report", "--out", str(tmp_path)]) == 0
    assert "Narrow to wide beats wide to narrow (digits): holds (+0.100 ± 0.001 nats)" in capsys.readouterr().out
    assert (tmp_path / "reverse-quick" / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fixed_with"], "There is no study 'fixed_with'; nearest: fixed_width"),
        (["steps", "--size", "huge"], "steps has no size 'huge'; its sizes are quick, full, paper"),
        (["steps", "--only", "nothing*"], "No cell of steps, quick, matches --only 'nothing*'"),
        (["steps", "--data", "cifar10"], "--data cifar10 is not of the form KEY=PATH"),
        (["steps", "--data", "cifar10=nowhere"], "there is no nowhere"),
        (["steps", "--workers", "0"], "--workers: '0' is not a whole number from 1"),
        (["steps", "--hours", "0"], "--hours is 0.0, but must be above 0"),
        (["steps", "--hours", "nan"], "--hours is nan, but must be above 0"),
        (["steps", "--size", "full"], "steps of size full needs data: give --data cifar10=PATH"),
        (
            ["steps", "--size", "full", "--data", "cifar=."],
            "--data cifar: steps of size full has no such data; it needs cifar10",
        ),
        (["steps", "--data", "cifar10=."], "steps of size quick has no such data; it needs no data"),
    ],
)
def test_usage_errors_are_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", *words, "--out", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("name", "size", "data"), [("fixed_width", "long", "gutenberg"), ("steps", "full", "cifar10")])
def test_the_wrong_folder_of_data_is_noticed_before_any_cell_runs(
    name: str, size: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_Process", None)  # starting a cell fails
    (tmp_path / "empty").mkdir()
    assert (
        main(["study", name, "--size", size, "--data", f"{data}={tmp_path / 'empty'}", "--out", str(tmp_path / "out")])
        == 2
    )
    said = capsys.readouterr().err
    assert f"--data {data}={tmp_path / 'empty'}: " in said
    assert said.count(str(tmp_path / "empty")) <= 2
    assert not list((tmp_path / "out").rglob("config.json"))


def test_the_folder_of_a_study_cannot_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["study", "steps", "--report", "--out", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_as_many_cells_at_a_time_as_cores_may_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell in REVERSE.sizes["quick"].cells():
        toy.pretend(tmp_path / "cells", cell, 1.0 + 0.001 * cell.seed)
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {3, 5, 8}, raising=False)
    assert main(["study", "reverse", "--out", str(tmp_path)]) == 0
    assert "0 of 9 cells to run, 3 at a time" in capsys.readouterr().err


def test_hours_of_a_study_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "fixed_flops", "--size", "paper", "--dry-run"]) == 0
    assert "e+0" not in capsys.readouterr().out
