"""Peaks are measured in child processes; saved bytes equal counts by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import create_model, save_model
from stepsnet.research.bench import MemorySubject, run_memory, saved_bytes
from stepsnet.research.bench.memory import measure_here, peak_in_child, peak_resident_bytes, saved_per_input

FLOAT = 4


def test_a_bigger_batch_takes_more_and_the_file_is_the_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_model(create_model("test_deit", img_size=128), file)
    subject = MemorySubject("mine", file)
    ticks: list[None] = []
    document = run_memory([subject], batches=(1, 65), tick=lambda: ticks.append(None))
    (row,) = document["rows"]
    assert row["growth"] == row["peaks"][1] - row["peaks"][0] > 64 * row["saved_per_input"] * 0.5
    assert len(ticks) == 2


def test_without_measuring_the_saved_bytes_remain() -> None:
    document = run_memory([MemorySubject("test_deit"), MemorySubject("test_steps_deit")], measure=False)
    assert [row["peaks"] for row in document["rows"]] == [[], []]
    assert document["rows"][0]["saved_per_input"] == saved_per_input(create_model("test_deit"))


def test_inference_saves_nothing() -> None:
    (row,) = run_memory([MemorySubject("test_deit")], modes=("inference",), measure=False)["rows"]
    assert row["saved_per_input"] is None


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(UsageError, match="no_such_model"):
        peak_in_child(MemorySubject("no_such_model"), "training", 1)


def test_the_child_process_runs_the_given_model() -> None:
    task = {"name": "test_deit", "file": None, "mode": "inference", "batch": 1, "threads": torch.get_num_threads()}
    assert measure_here(task) > 10_000_000


def test_the_peak_is_read_where_linux_counts_it(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmPeak:\t 999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    assert peak_resident_bytes(tmp_path / "status") == 2048 * 1024


def test_a_linear_layer_saves_its_input_unless_that_was_there_before() -> None:
    layer, x = nn.Linear(8, 16), torch.randn(2, 8)
    assert saved_bytes(layer, x) == 0
    assert saved_bytes(layer, x, forward=lambda x: layer(x.tanh())) == 2 * 8 * FLOAT


def test_a_small_chain_by_hand() -> None:
    """Linear 8→16 saves its input (not counted), ReLU its output, which the second layer saves too: counted once."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    assert saved_bytes(model, torch.randn(3, 8)) == 3 * 16 * FLOAT


def test_gelu_and_its_neighbour_save_one_each() -> None:
    """GELU saves its input; its output is saved by the layer behind it."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    assert saved_bytes(model, torch.randn(3, 8)) == 2 * 3 * 16 * FLOAT


class Narrow(nn.Module):
    """Works on a slice of something wider."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x + 1
        return wide[:, :2].exp() * wide[:, 2:4]


def test_a_view_keeps_all_that_it_is_a_view_of() -> None:
    """The product saves exp's result (3×2), as exp does, and a view of `wide`, all of which (3×10) stays alive."""
    x = torch.randn(3, 10, requires_grad=True)
    assert saved_bytes(Narrow(), x) == (3 * 2 + 3 * 10) * FLOAT


def test_parameters_and_buffers_are_not_counted() -> None:
    norm = nn.BatchNorm1d(8).eval()
    assert saved_bytes(norm, torch.randn(4, 8)) == 0


@pytest.mark.parametrize("name", ["test_deit", "test_steps_swin", "test_steps_transformer"])
def test_what_is_saved_grows_with_the_batch_in_proportion(name: str) -> None:
    model = create_model(name).train()
    per_batch = []
    for batch in (2, 4):
        x = torch.randn(batch, 3, 32, 32) if "transformer" not in name else torch.zeros(batch, 32, dtype=torch.long)
        per_batch.append(saved_bytes(model, x))
    assert per_batch[1] == pytest.approx(2 * per_batch[0], rel=0.1)  # masks and rotary tables serve every batch
    assert per_batch[0] > 0


def test_a_checkpointed_model_saves_less() -> None:
    model, x = create_model("test_deit").train(), torch.randn(2, 3, 32, 32)
    everything = saved_bytes(model, x)
    model.set_grad_checkpointing()
    assert saved_bytes(model, x) < everything / 2
