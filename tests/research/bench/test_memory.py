"""Peaks are those of processes that really ran; bytes are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsnet.errors import UsageError
from stepsnet.models import create_model, save_model
from stepsnet.research.bench import Subject, run_memory
from stepsnet.research.bench.child import measure_here, peak_resident_bytes
from stepsnet.research.bench.memory import peak_in_child, saved_per_input


def test_a_bigger_batch_takes_more_and_the_file_is_the_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_model(create_model("test_deit", img_size=128), file)
    subject = Subject("mine", file)
    ticks: list[None] = []
    document = run_memory([subject], batches=(1, 65), tick=lambda: ticks.append(None))
    (row,) = document["rows"]
    assert row["growth"] == row["peaks"][1] - row["peaks"][0] > 64 * row["saved_per_input"] * 0.5
    assert len(ticks) == 2


def test_without_measuring_the_saved_bytes_remain() -> None:
    document = run_memory([Subject("test_deit"), Subject("test_steps_deit")], measure=False)
    assert [row["peaks"] for row in document["rows"]] == [[], []]
    assert document["rows"][0]["saved_per_input"] == saved_per_input(create_model("test_deit"))


def test_inference_saves_nothing() -> None:
    (row,) = run_memory([Subject("test_deit")], modes=("inference",), measure=False)["rows"]
    assert row["saved_per_input"] is None


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(UsageError, match="no_such_model"):
        peak_in_child(Subject("no_such_model"), "training", 1)


def test_the_child_runs_the_model_it_is_told() -> None:
    import torch

    task = {"name": "test_deit", "file": None, "mode": "inference", "batch": 1, "threads": torch.get_num_threads()}
    assert measure_here(task) > 10_000_000


def test_the_peak_is_read_where_linux_counts_it(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmPeak:\t 999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    assert peak_resident_bytes(tmp_path / "status") == 2048 * 1024
