"""Designs that only studies compare."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepsnet.macro import MatchedJoin, Stack, StepsNet
from stepsnet.macro.plan import StepPlan
from stepsnet.models import create_model
from stepsnet.research.joins import waist


def rms(z: torch.Tensor) -> torch.Tensor:
    return z.square().mean(-1, keepdim=True).sqrt()


def test_the_detached_join_has_the_value_of_the_matched_one_and_no_gradient_of_the_factor() -> None:
    y, x = torch.randn(3, 4, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    joined = StepsNet([nn.Identity(), nn.Identity()], [4, 10], join="matched").joins[0](y, x)
    assert torch.equal(joined, MatchedJoin()(y, x))
    by_y, by_x = torch.autograd.grad(joined[:, 4:].sum(), (y, x))
    assert torch.count_nonzero(by_y) == 0
    torch.testing.assert_close(by_x, (rms(y) / rms(x)).expand_as(x))


def test_the_unit_join_gives_both_parts_size_one() -> None:
    y, x = 5 * torch.randn(3, 4), 0.1 * torch.randn(3, 6)
    join = StepsNet([nn.Identity(), nn.Identity()], [4, 10], join="unit").joins[0]
    torch.testing.assert_close(join(y, x), torch.cat((y / rms(y), x / rms(x)), 1))
    assert join(torch.zeros(1, 4), torch.zeros(1, 6)).eq(0).all()


def test_the_matched_down_join_scales_y_to_x_without_gradient_of_the_factor() -> None:
    y, x = (5 * torch.randn(3, 4)).requires_grad_(), (0.1 * torch.randn(3, 6)).requires_grad_()
    joined = StepsNet([nn.Identity(), nn.Identity()], [4, 10], join="matched_down").joins[0](y, x)
    factor = (rms(x) / rms(y)).detach()
    torch.testing.assert_close(joined, torch.cat((y * factor, x), 1))
    joined.sum().backward()
    torch.testing.assert_close(y.grad, factor.expand_as(y))
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_a_waist_goes_from_wide_to_narrow_and_back() -> None:
    made: list[tuple[int, int]] = []

    def make_block(width: int, index: int) -> nn.Module:
        made.append((width, index))
        return nn.Linear(width, width)

    net = waist(make_block, StepPlan.parse("2x2, 4x3, 6x2"), -1, Stack)
    assert [width for width, _ in made] == [6, 4, 4, 2, 2, 4, 6]
    assert [index for _, index in made] == list(range(7))
    x = torch.randn(3, 6)
    expected = x
    for narrowed in net.steps[0].blocks:  # type: ignore[union-attr]
        width = narrowed.width
        expected = torch.cat((narrowed.block(expected[:, :width]), expected[:, width:]), 1)
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize("name", ["test_steps_deit", "test_steps_transformer"])
def test_a_waist_costs_as_much_as_its_plan(name: str) -> None:
    steps, turned = create_model(name, device="meta").cost(), create_model(name, macro="waist", device="meta").cost()
    assert (turned.blocks, turned.params, turned.macs) == (steps.blocks, steps.params, steps.macs)
