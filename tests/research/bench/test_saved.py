"""Bytes saved for backward, beside what a person counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stepsnet.models import create_model
from stepsnet.research.bench import saved_bytes

FLOAT = 4


def test_a_linear_layer_saves_its_input_unless_that_was_there_before() -> None:
    layer, x = nn.Linear(8, 16), torch.randn(2, 8)
    assert saved_bytes(layer, x) == 0
    assert saved_bytes(layer, x, forward=lambda x: layer(x.tanh())) == 2 * 8 * FLOAT


def test_a_small_chain_by_hand() -> None:
    """Linear 8→16 saves its input (there before), ReLU its output, which is also what the second layer saves: counted once."""
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
    """The product saves exp's result (3×2), as exp does, and a view of `wide`, whose 3×10 numbers stay alive as a whole."""
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
