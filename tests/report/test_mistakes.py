"""The mistakes of a classifier: counted right, the surest first, and shown in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stepsnet.cli.main import main
from stepsnet.models import load_model
from stepsnet.report.mistakes import mistakes_section
from stepsnet.train.build import task_of
from stepsnet.train.config import read_config
from stepsnet.train.distributed import Processes
from stepsnet.train.loader import ValidationBatches


def test_a_run_records_its_confusions_and_worst_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=test_deit", "batch_size=64", "iters=8", "eval.every=0", "eval.batch_size=100", "out=run"]
    assert main(["train", "digits", *words]) == 0
    found = json.loads(Path("run/mistakes.json").read_text())
    result = json.loads(Path("run/result.json").read_text())
    total = sum(count for *_, count in found["confused"])
    right = sum(count for target, predicted, count in found["confused"] if target == predicted)
    assert total == 360
    assert right / total == pytest.approx(result["top1"])

    task, model = task_of(read_config(Path("run"))), load_model("run").eval()
    ((batch, _),) = ValidationBatches(task, 360, 0, Processes())
    with torch.no_grad():
        best, predicted = model(batch["image"]).softmax(-1).max(-1)
    surest = best[predicted != batch["target"]].max()
    assert found["worst"][0]["probability"] == pytest.approx(float(surest), abs=1e-5)
    assert [one["probability"] for one in found["worst"]] == sorted(
        (one["probability"] for one in found["worst"]), reverse=True
    )
    page = Path("run/report.html").read_text()
    assert "Confusion matrix" in page
    assert page.count("data:image/jpeg;base64,") == len(found["worst"]) == 12


@pytest.mark.parametrize(("classes", "title"), [(3, "Confusion matrix"), (40, "The 2 most frequent confusions")])
def test_many_classes_are_shown_by_their_most_frequent_confusions(tmp_path: Path, classes: int, title: str) -> None:
    names = [f"kind <{number}>" for number in range(classes)]
    (tmp_path / "classes.json").write_text(json.dumps({"classes": names}))
    confused = [[0, 0, 6], [0, 2, 2], [1, 1, 5], [2, 0, 3]]
    (tmp_path / "mistakes.json").write_text(json.dumps({"confused": confused, "worst": []}))
    page = mistakes_section(tmp_path)
    assert title in page
    assert "5 of 16 validation images" in page
    assert "kind &lt;2&gt;" in page
    assert ("75.0%" if classes == 3 else "100.0%") in page
    assert "gallery" not in page


def test_a_run_without_recorded_mistakes_has_no_such_section(tmp_path: Path) -> None:
    assert mistakes_section(tmp_path) == ""
