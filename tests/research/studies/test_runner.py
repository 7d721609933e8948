"""Cells run in their own processes, continue from checkpoints, never run twice, and are the registered ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stepsnet.errors import UsageError
from stepsnet.files import read_json
from stepsnet.report.chart import LineChart
from stepsnet.research.studies import runner
from stepsnet.research.studies.ablations import DROPS, PATHS
from stepsnet.research.studies.cell import probe
from stepsnet.research.studies.pages import gamma_over_depth, study_page, verdict_of
from stepsnet.research.studies.results import (
    HOLDS,
    INCONCLUSIVE,
    REFUTED,
    CellResult,
    Outcome,
    ResultLines,
    has_null,
)
from stepsnet.research.studies.runner import StudyFiles, ahead, collect, left, run_study, steps_left
from stepsnet.research.studies.study import Arm, Cell, Search, Study
from stepsnet.runs.folder import read_lines, read_result
from stepsnet.train.config import customise
from stepsnet.train.trainer import train
from stepsnet.train.typed import to_dict
from tests.research.studies import toy

ROOT = Path(__file__).parents[3]

patient = pytest.mark.timeout(600)  # processes of their own, seconds on an idle machine and minutes on a busy one


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_Process", None)  # starting a cell fails


@patient
def test_a_study_reports_failed_cells_and_runs_no_cell_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = toy.study(toy.arm("plain"), toy.arm("broken", "lr=1e30"))
    place = StudyFiles(tmp_path, study, "quick")
    ended = run_study(place, roots={}, workers=2)
    statuses = {cell: found.status for cell, found in ended.results.found.items()}
    assert statuses == {"toy-plain-2-s0": "finished", "toy-broken-2-s0": "failed"}
    assert "finite" in ended.results.found["toy-broken-2-s0"].error
    lines = read_lines(place.folder / "results.jsonl")
    assert sorted(line["cell"] for line in lines) == ["toy-broken-2-s0", "toy-plain-2-s0"]
    page = study_page(place, ended.results)
    assert page.outcomes == ["broken beats plain: not compared"]
    assert page.remarks[0].startswith("Failed: toy-broken-2-s0: ")
    environment = json.loads((place.pool / "toy-plain-2-s0" / "environment.json").read_text())
    assert environment["threads"] == 1
    assert [line["step"] for line in ended.results.found["toy-plain-2-s0"].doctor] == [0, 2]

    monkeypatch.setattr(runner, "_Process", None)  # starting a cell fails
    again = StudyFiles(tmp_path, toy.study(toy.arm("plain"), name="other"), "quick")
    assert not run_study(again, roots={}, workers=1).results.missing()
    assert [cell.id for cell in left(place)] == ["toy-broken-2-s0"]


SCRIPT = """
import sys
from pathlib import Path
from stepsnet.research.studies.runner import StudyFiles, run_study
from tests.research.studies import toy
run_study(StudyFiles(Path(sys.argv[1]), toy.study(toy.arm(iters=30)), "quick"), roots={}, workers=1)
"""


@patient
def test_a_killed_study_resumes(tmp_path: Path, one_thread: None) -> None:
    study, cell = toy.study(toy.arm(iters=30)), Cell(toy.arm(iters=30), 0)
    place = StudyFiles(tmp_path / "killed", study, "quick")
    metrics = place.pool / cell.id / "metrics.jsonl"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(place.out)], cwd=ROOT) as parent:
        wait_for(lambda: len(read_lines(metrics)) > 5)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        for process in (parent.pid, *map(int, children)):
            os.kill(process, signal.SIGKILL)
    assert 5 < len(read_lines(metrics)) < 30
    assert not collect(place).found

    cut = run_study(place, roots={}, workers=1, hours=1e-6)
    assert cut.out_of_time
    assert not cut.results.found  # stopped is not failed
    found = run_study(place, roots={}, workers=1).results.found[cell.id]
    whole = tmp_path / "whole"
    train(cell.arm.config(0, whole))
    expected = read_lines(whole / "metrics.jsonl")
    assert [(line["step"], line["loss"]) for line in read_lines(metrics)] == [
        (line["step"], line["loss"]) for line in expected
    ]
    assert found.valid == {name: value for name, value in read_result(whole).items() if name != "step"}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As cells have: the order of sums depends on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@patient
def test_a_cell_saves_and_exits_when_its_study_dies(tmp_path: Path) -> None:
    cell = Cell(toy.arm(iters=2000), 0)
    folder = tmp_path / cell.id
    job = {"config": to_dict(cell.arm.config(0, folder)), "looks": [], "look_every": 1000, "probes": []}
    with subprocess.Popen(
        [sys.executable, "-m", "stepsnet.research.studies.cell"], stdin=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        process.stdin.write((json.dumps(job) + "\n").encode())
        process.stdin.flush()
        wait_for(lambda: len(read_lines(folder / "metrics.jsonl")) > 2)
        process.stdin.close()
        assert process.wait() == 128 + signal.SIGTERM
    assert any((folder / "checkpoints").iterdir())


def wait_for(condition: Callable[[], bool]) -> None:
    """Until the time limit of the test."""
    while not condition():
        time.sleep(0.1)


@pytest.mark.usefixtures("no_processes")
def test_a_cell_that_was_run_with_other_settings_is_refused(tmp_path: Path) -> None:
    toy.pretend(tmp_path / "cells", Cell(toy.arm(iters=7), 0), 1.0)
    place = StudyFiles(tmp_path, toy.study(toy.arm(iters=5)), "quick")
    with pytest.raises(UsageError, match=r"toy-plain-2-s0 was run with iters=7, but the study registers iters=5"):
        run_study(place, roots={}, workers=1)


@pytest.mark.usefixtures("no_processes")
def test_a_pool_and_its_data_can_be_moved(tmp_path: Path) -> None:
    cell = Cell(toy.arm(data="books"), 0)
    toy.pretend(tmp_path / "first" / "cells", cell, 1.0)
    (tmp_path / "first").rename(tmp_path / "second")
    place = StudyFiles(tmp_path / "second", toy.study(cell.arm), "quick")
    assert run_study(place, roots={}, workers=1).results.found[cell.id].loss == 1.0


@pytest.mark.usefixtures("no_processes")
def test_missing_data_are_reported_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give --data books=PATH"):
        run_study(StudyFiles(tmp_path, toy.study(toy.arm(data="books")), "quick"), roots={}, workers=1)


@pytest.mark.usefixtures("no_processes")
def test_only_cells_that_match_are_run(tmp_path: Path) -> None:
    study = toy.study(toy.arm("one"), toy.arm("two"), seeds=(0, 1))
    assert [cell.id for cell in left(StudyFiles(tmp_path, study, "quick"), "*two*s1")] == ["toy-two-2-s1"]


@pytest.mark.usefixtures("no_processes")
def test_a_finished_run_without_its_probe_is_not_finished(tmp_path: Path) -> None:
    cell = Cell(toy.arm(), 0)
    folder = toy.pretend(tmp_path / "cells", cell, 1.0)
    study = toy.study(cell.arm)
    looked = type(study)(**{**study.__dict__, "probes": ("paths",)})
    assert left(StudyFiles(tmp_path, looked, "quick")) == [cell]
    (folder / "paths.json").write_text('{"loss": {}}')
    assert left(StudyFiles(tmp_path, looked, "quick")) == []


def test_a_finished_cell_is_not_trained_again_after_its_data_moved(tmp_path: Path) -> None:
    cell = Cell(toy.arm(), 0)
    folder = toy.pretend(tmp_path / "cells", cell, 1.0)
    before = (folder / "result.json").read_bytes()
    job = {"config": to_dict(cell.arm.config(0, folder, root="elsewhere")), "looks": [], "look_every": 1, "probes": []}
    words = [sys.executable, "-m", "stepsnet.research.studies.cell"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        process.stdin.write((json.dumps(job) + "\n").encode())
        process.stdin.flush()
        assert process.wait() == 0
    assert (folder / "result.json").read_bytes() == before


def test_a_truncated_line_is_ignored_and_a_later_line_counts(tmp_path: Path) -> None:
    path, cell = tmp_path / "study" / "results.jsonl", Cell(toy.arm(), 0)
    for _ in range(2):
        ResultLines(path).add(CellResult(cell.id, 0, "failed", error="first"))
    assert "NaN" not in path.read_text()
    with path.open("a") as file:
        file.write('{"cell": "toy-pl')
    lines = ResultLines(path)
    again = lines.known(cell)
    assert again is not None
    assert again.error == "first"
    lines.add(toy.made_up(cell, 2.0))
    lines.add(toy.made_up(cell, 2.0))
    first, cut, last = path.read_text().splitlines()
    assert (json.loads(first)["status"], cut, json.loads(last)["status"]) == ("failed", '{"cell": "toy-pl', "finished")
    finished = ResultLines(path).known(cell)
    assert finished is not None
    assert finished.loss == 2.0


def test_a_result_of_other_arguments_is_not_taken(tmp_path: Path) -> None:
    path, cell = tmp_path / "results.jsonl", Cell(toy.arm(), 0)
    ResultLines(path).add(replace(toy.made_up(cell, 2.0), words=f"{cell.words()} lr=1"))
    assert ResultLines(path).known(cell) is None


def test_a_published_result_stands_for_its_run_folder(tmp_path: Path) -> None:
    place = StudyFiles(tmp_path, toy.study(toy.arm()), "quick")
    (cell,) = place.chosen().cells()
    ResultLines(place.folder / "results.jsonl").add(toy.made_up(cell, 2.0))
    assert collect(place).found[cell.id].loss == 2.0
    assert left(place) == []


def test_a_published_result_of_another_study_is_reused_if_it_finished(tmp_path: Path) -> None:
    place = StudyFiles(tmp_path, toy.study(toy.arm(), seeds=(0, 1)), "quick")
    done, broken = place.chosen().cells()
    other = ResultLines(tmp_path / "other-quick" / "results.jsonl")
    other.add(toy.made_up(done, 2.0))
    other.add(toy.made_up(broken, None))
    assert collect(place).found.keys() == {done.id}
    assert left(place) == [broken]


def test_reading_does_not_disturb_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"cell": "half of a li')
    ResultLines(path)
    assert path.read_text() == '{"cell": "half of a li'


@patient
def test_two_studies_can_run_the_same_cell_at_the_same_time(tmp_path: Path) -> None:
    cell = Cell(toy.arm(), 0)
    folder = tmp_path / "cells" / cell.id
    job = {"config": to_dict(cell.arm.config(0, folder)), "looks": [], "look_every": 1000, "probes": []}
    words = [sys.executable, "-m", "stepsnet.research.studies.cell"]
    with ExitStack() as open_:
        both = [open_.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, cwd=ROOT)) for _ in range(2)]
        for process in both:
            assert process.stdin is not None
            process.stdin.write((json.dumps(job) + "\n").encode())
            process.stdin.flush()
        assert [process.wait(500) for process in both] == [0, 0]
    assert [line["step"] for line in read_lines(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("study", "probe"),
    [
        (PATHS, {"loss": {"sizes": [0, 8], "slow": [1.0, None], "fast": [1.0, 1.4]}}),
        (
            DROPS,
            {
                "loss": {
                    "steps": ["none", *"abc"],
                    "dropped": [0, 4, 2, 1],
                    "share": [0] * 4,
                    "metric": [1.0, None, 2.0, 2.0],
                }
            },
        ),
    ],
    ids=["paths", "drops"],
)
def test_a_nonfinite_probe_is_a_failure_and_decides_nothing(
    study: Study, probe: dict[str, object], tmp_path: Path
) -> None:
    place = StudyFiles(tmp_path, study, "quick")
    for cell in place.chosen().cells():
        toy.pretend(place.pool, cell, 1.0, **{study.name: probe})
    page = study_page(place, collect(place))
    assert all(outcome.endswith("not compared") for outcome in page.outcomes)
    assert page.remarks[0].endswith(f"the probe {study.name} of the trained model is not finite everywhere")


@patient
@pytest.mark.parametrize("damage", [{"loss": {"slow": [1.0, None]}}, {}], ids=["null", "empty"])
def test_only_nonfinite_probes_are_repeated(
    damage: dict[str, object], tmp_path: Path
) -> None:
    config = customise(
        toy.arm().config(0, tmp_path / "run"), ["model=test_steps_deit", "plan=none", "model_args.embed_dim=32"]
    )
    train(config)
    path = tmp_path / "run" / "paths.json"
    path.write_text(json.dumps(damage))
    probe("paths", tmp_path / "run", config)
    found = read_json(path)
    assert found["loss"]["slow"]
    assert not has_null(found)
    path.write_text(json.dumps({"loss": {"slow": [7.0]}}))
    probe("paths", tmp_path / "run", config)
    assert read_json(path) == {"loss": {"slow": [7.0]}}


def test_failed_cells_are_in_no_figure(tmp_path: Path) -> None:
    arm = toy.arm()
    for seed, loss in enumerate((1.0, 2.0)):
        toy.pretend(tmp_path, Cell(arm, seed), loss)
    (tmp_path / Cell(arm, 1).id / "gamma.jsonl").write_text(json.dumps({"step": 0, "gamma": [0.0, 0.0]}) + "\n")
    made = toy.results({"plain": [1.0, None]}, [arm])
    ((_, chart),) = gamma_over_depth(replace(made, pool=tmp_path), arm.setting, [arm], 0)
    assert isinstance(chart, LineChart)
    assert list(chart.lines[0].y) == [1.0, 0.5]


def test_the_report_has_tables_outcomes_and_figures(tmp_path: Path) -> None:
    study = toy.study(toy.arm("one"), toy.arm("two"), seeds=(0, 1))
    place = StudyFiles(tmp_path, study, "quick")
    for cell in place.chosen().cells():
        toy.pretend(place.pool, cell, (1.0 if cell.arm.network == "two" else 2.0) + 0.1 * cell.seed)
    html, markdown = study_page(place, collect(place)).write(place.folder)
    words = markdown.read_text()
    assert "two beats one: holds (+1.000 ± 0.071 nats)" in words
    assert "| one | 2 | " in words
    assert "2.050 ± 0.050" in words
    assert "![toy-differences](toy-differences.svg)" in words
    assert (place.folder / "toy-differences.svg").stat().st_size > 1000
    page = html.read_text()
    assert "<svg" in page
    assert '<p class="verdict ink">two beats one: holds (+1.000 ± 0.071 nats)</p>' in page
    assert "<dt>finished cells</dt><dd>4/4</dd>" in page
    assert "<pre>stepsnet study toy --size quick</pre>" in page
    assert "toy-one-2: digits model=test_deit" in page.partition("<summary>Configuration of the arms</summary>")[2]
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_several_outcomes_are_counted_in_the_verdict() -> None:
    outcomes = [Outcome("a", HOLDS), Outcome("b", HOLDS), Outcome("c", REFUTED), Outcome("d", INCONCLUSIVE)]
    assert verdict_of(outcomes) == "Of 4 hypotheses: 2 hold, 1 refuted, 1 open"


SEARCH = Search((1e-3, 1e-2), ("iters=3",))


def searching(*arms: Arm, seeds: tuple[int, ...] = (0, 1)) -> Study:
    study = toy.study(*arms, seeds=seeds)
    return replace(study, sizes={"quick": replace(study.sizes["quick"], search=SEARCH)})


def test_a_search_decides_the_learning_rate_of_the_cells_that_follow(tmp_path: Path) -> None:
    place = StudyFiles(tmp_path, searching(toy.arm("one"), toy.arm("two")), "quick")
    size = place.chosen()
    assert size.count() == 4 + 4
    assert [cell.id for cell in left(place)] == [
        "toy-one_try0.001-2-s0", "toy-one_try0.01-2-s0", "toy-two_try0.001-2-s0", "toy-two_try0.01-2-s0",
    ]  # fmt: skip
    for cell, loss in zip(size.searched(), (1.0, 2.0, 4.0, 3.0), strict=True):
        toy.pretend(place.pool, cell, loss)
    assert [cell.id for cell in left(place)] == [
        "toy-one_lr0.001-2-s0", "toy-two_lr0.01-2-s0", "toy-one_lr0.001-2-s1", "toy-two_lr0.01-2-s1",
    ]  # fmt: skip
    tuned = left(place)[1].arm.config(0)
    assert (tuned.lr, tuned.iters) == (0.01, 5)
    for cell in left(place):
        toy.pretend(place.pool, cell, (1.0 if "two" in cell.id else 2.0) + 0.01 * cell.seed)
    results = collect(place)
    assert not results.missing()
    page = study_page(place, results)
    assert page.outcomes == ["two beats one: holds (+1.000 ± 0.007 nats)"]
    assert [row[4] for row in page.tables[0].rows] == ["0.001", "0.01"]
    assert page.lead == "8 of 8 cells finished, 0 failed, 0 unfinished"


def test_an_open_learning_rate_leaves_its_arm_unfinished(tmp_path: Path) -> None:
    place = StudyFiles(tmp_path, searching(toy.arm("one"), toy.arm("two")), "quick")
    for cell in place.chosen().searched()[:3]:
        toy.pretend(place.pool, cell, 1.0)
    results = collect(place)
    assert results.missing() == [
        "toy-two_try0.01-2-s0", "toy-one_lr0.001-2-s0", "toy-one_lr0.001-2-s1", "toy-two-2-s0", "toy-two-2-s1",
    ]  # fmt: skip
    assert study_page(place, results).tables[0].rows[1][4] == "open"


def test_cells_that_wait_for_a_search_are_counted_if_it_runs_too(tmp_path: Path) -> None:
    place = StudyFiles(tmp_path, searching(toy.arm("one"), toy.arm("two")), "quick")
    assert len(ahead(place)) == place.chosen().count()
    assert steps_left(place, ahead(place)) == 4 * 3 + 4 * 5
    assert len(ahead(place, "*one*")) == 2 + 2
    assert ahead(place, "*-s1") == []
    for cell in place.chosen().searched()[:2]:
        toy.pretend(place.pool, cell, 1.0)
    assert [cell.id for cell in ahead(place, "*-s1")] == ["toy-one_lr0.001-2-s1"]


@patient
def test_a_study_with_a_search_runs_both_phases(tmp_path: Path) -> None:
    place = StudyFiles(tmp_path, searching(toy.arm("one"), seeds=(0,)), "quick")
    results = run_study(place, roots={}, workers=2).results
    assert not results.missing()
    assert len(results.found) == 3
    rates = {read_json(place.pool / cell / "config.json")["lr"] for cell in results.found if "_lr" in cell}
    assert rates <= {1e-3, 1e-2}


def test_core_hours_count_the_search_and_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "step_seconds", lambda arm, cache: 3600.0)
    hours = runner.core_hours(StudyFiles(tmp_path, searching(toy.arm("one"), toy.arm("two")), "quick"))
    assert hours == {"toy-one-2": 2 * 3 + 2 * 5, "toy-two-2": 2 * 3 + 2 * 5}
