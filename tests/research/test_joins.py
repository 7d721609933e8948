"""Joins with a learned gain."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepsnet.macro import StepsNet


@pytest.mark.parametrize(("name", "start"), [("gain", "plain"), ("gain_matched", "matched")])
def test_a_learned_gain_starts_as_its_join_without_one_and_scales_the_slice(name: str, start: str) -> None:
    y, x = torch.randn(2, 4), torch.randn(2, 6)
    learned = StepsNet([nn.Identity(), nn.Identity()], [4, 10], join=name).joins[0]
    without = StepsNet([nn.Identity(), nn.Identity()], [4, 10], join=start).joins[0](y, x)
    assert torch.equal(learned(y, x), without)
    nn.init.constant_(learned.get_parameter("gain"), 3.0)
    torch.testing.assert_close(learned(y, x), torch.cat((y, 3.0 * without[:, 4:]), 1))
