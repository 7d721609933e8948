"""Layers replaced for tracing compute the same as the originals, for every size."""

from __future__ import annotations

import pytest
import torch

from stepsnet.blocks.window import WindowAttention
from stepsnet.export.traceable import AnySizeWindowAttention, traceable
from stepsnet.models import create_model
from tests.models.tiny import shake


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("side", [(3, 3), (3, 4), (6, 9), (7, 5), (8, 3), (2, 5), (2, 2)])
def test_window_attention_by_gather_equals_window_attention(side: tuple[int, int], shifted: bool) -> None:
    attention = WindowAttention(8, 2, window=3, shifted=shifted).eval()
    x = torch.randn(2, *side, 8)
    with torch.no_grad():
        torch.nn.init.normal_(attention.bias_table)
        torch.testing.assert_close(AnySizeWindowAttention(attention)(x), attention(x), rtol=0, atol=1e-5)


def test_the_original_model_is_not_changed() -> None:
    model = shake(create_model("test_swin"))
    before = [type(module) for module in model.modules()]
    copied = traceable(model)
    assert [type(module) for module in model.modules()] == before
    assert model.training
    assert not copied.training
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in copied.parameters()} == own
