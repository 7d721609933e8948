"""Every table of the command line at four widths: it fits, no number is cut, and every row keeps its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepsnet.cli.main import main
from stepsnet.report.table import Column, Table, cell_width
from stepsnet.research.studies.ablations import REVERSE
from tests.cli.test_demo import pretend_demo
from tests.research.studies import toy

WIDTHS = (60, 80, 120, 200)
RUNS = {
    "digits-test_steps_deit-1": {
        "recipe": "digits", "task": "classification", "model": "test_steps_deit", "plan": "16x4, 22x2, 32x2",
    },
    "imagenet-steps_deit_deep_d96-12": {
        "recipe": "imagenet_deit", "task": "classification", "model": "steps_deit_deep_d96",
        "plan": "34x24, 48x12, 68x12, 96x12, 136x12, 192x12, 272x12",
    },
    "coco": {"recipe": "coco_cascade_mask_rcnn", "task": "detection", "model": "steps_swin_tiny", "plan": None},
}  # fmt: skip
METRICS = {"loss": 1.23456, "top1": 0.98765, "mask_ap": 0.3912345, "ema_top1": 0.98}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with runs, and with the cells of a study."""
    for name, config in RUNS.items():
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps(config))
        (run / "metrics.jsonl").write_text('{"step": 123456}\n')
        (run / "eval.jsonl").write_text(json.dumps({"step": 123456, **METRICS}) + "\n")
    for cell in REVERSE.sizes["quick"].cells():
        toy.pretend(tmp_path / "studies" / "cells", cell, 1.0 + 0.001 * cell.seed)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Table]:
    """The tables that commands print from now on."""
    found: list[Table] = []
    text = Table.text

    def recorded(self: Table, width: int | None = None, **options: Any) -> str:
        found.append(self)
        return text(self, width, **options)

    monkeypatch.setattr(Table, "text", recorded)
    return found


def assert_whole(table: Table, width: int) -> None:
    """Lines fit; cells of columns that are not left out are whole; more than names is shown."""
    text = table.text(width)
    columns = [column if isinstance(column, Column) else Column(column, "number" if index else "name")
               for index, column in enumerate(table.columns)]  # fmt: skip
    assert max(map(cell_width, text.splitlines())) <= width
    remark = " ".join(text.split()).partition("Left out to fit")[2].removesuffix(".")
    left_out = remark.partition(" columns: ")[2].split("; ") if remark else []
    shown = [index for index, column in enumerate(columns) if column.title not in left_out]
    assert any(columns[index].kind == "name" for index in shown)
    assert len(shown) > 1
    for row in table.rows:
        for index in shown:
            parts = row[index].split() if columns[index].kind == "text" else [row[index]]
            assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize(
    "words",
    [
        ["models", "*deep_d96"],
        ["runs"],
        ["reproduce", "table5b"],
        ["reproduce", "table9"],
        ["study", "--list"],
        ["study", "reverse", "--dry-run", "--out", "studies"],
        ["study", "reverse", "--report", "--out", "studies"],
        ["analyze", "gamma", "test_steps_swin"],
        ["analyze", "gradients", "test_steps_swin"],
        ["bench", "speed", "test_deit", "--rounds", "7", "--batch", "1"],
        ["doctor", "test_steps_deit"],
        ["bench", "memory", "test_deit", "test_steps_deit", "--batch", "1", "2"],
        ["demo", "--out", "demo"],
        ["plan", "test_deit"],
        ["train", "--keys"],
        ["train", "digits", "--keys"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("folder")
def test_no_number_is_cut_and_no_name_is_lost(
    words: list[str], tables: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepsnet.research.bench.memory.peak_in_child", lambda subject, mode, batch: 1_000_000 * batch)
    pretend_demo(monkeypatch)
    assert main(words) == 0
    assert tables
    for table in list(tables):
        for width in WIDTHS:
            assert_whole(table, width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("folder")
def test_runs_show_the_metric_of_every_task_at_the_width_of_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["runs"]) == 0
    said = capsys.readouterr().out
    assert max(map(cell_width, said.splitlines())) <= width
    assert all(word in said for word in (*RUNS, "mask_ap", "0.3912"))


@pytest.mark.usefixtures("folder")
def test_a_table_in_a_pipe_has_at_most_120_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    assert 80 < max(map(cell_width, capsys.readouterr().out.splitlines())) <= 120
