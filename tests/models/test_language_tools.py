"""What other tools do with a language model: compile it for several lengths, trace it, export it with a free length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.models.tiny import language


def make_ids(length: int) -> Tensor:
    return torch.randint(0, 256, (2, length), generator=torch.Generator().manual_seed(length))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_one_graph_for_several_lengths() -> None:
    """The second length makes the length symbolic."""
    model = language("test_steps_transformer", plan="16x1, 32x1").eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (5, 9, 12):
        close(compiled(make_ids(length)), model(make_ids(length)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace() -> None:
    model = language("test_steps_transformer").eval()
    traced = torch.jit.trace(model, make_ids(7))
    close(traced(make_ids(7)), model(make_ids(7)))


def test_export_with_a_free_length() -> None:
    model = language("test_steps_transformer").eval()
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(model, (make_ids(7),), dynamic_shapes=({1: length},)).module()
    for tokens in (2, 7, 30):
        close(program(make_ids(tokens)), model(make_ids(tokens)))
