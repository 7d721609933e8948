"""Joins: plain, matched, and custom modules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.macro import MatchedJoin, StepsNet
from tests.macro.nets import Case, cases


def rms(x: Tensor, dim: int) -> Tensor:
    return x.double().square().mean(dim, keepdim=True).sqrt()


@given(cases(min_steps=2), st.floats(1e-3, 1e3))
def test_matched_gives_the_new_slice_the_rms_of_y_at_every_position(case: Case, size: float) -> None:
    narrow, wide = case.widths[0], case.widths[-1]
    y, x = case.input().split((narrow, wide - narrow), case.channel_dim)
    joined = MatchedJoin(case.channel_dim)(size * y, x)
    kept, fresh = joined.split((narrow, wide - narrow), case.channel_dim)
    assert torch.equal(kept, size * y)
    torch.testing.assert_close(rms(fresh, case.channel_dim), rms(size * y, case.channel_dim))


def test_matched_only_scales() -> None:
    y, x = torch.randn(3, 4), torch.randn(3, 6)
    fresh = MatchedJoin()(y, x)[:, 4:]
    torch.testing.assert_close(fresh, x * rms(y, 1).float() / rms(x, 1).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_matched_in_fp32(dtype: torch.dtype) -> None:
    y, x = torch.randn(64, 256).to(dtype), (torch.randn(64, 256) / 300).to(dtype)
    joined = MatchedJoin()(y, x)
    assert joined.dtype == dtype
    expected = (x.double() * rms(y, 1) / rms(x, 1)).to(
        dtype
    )  # rounded once, at the end: a factor in bf16 would be off by up to 2⁻⁸
    assert (joined[:, 256:] == expected).double().mean() > 0.999


def test_half_precision_sums_do_not_overflow() -> None:
    y, x = torch.full((1, 2048), 200.0, dtype=torch.float16), torch.ones(1, 2048, dtype=torch.float16)
    assert torch.equal(MatchedJoin()(y, x), torch.full((1, 4096), 200.0, dtype=torch.float16))


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-39, 1e-30, 1e-20])
def test_zero_and_tiny_slices_give_finite_values_and_gradients(tiny: float) -> None:
    y, x = torch.randn(2, 4, requires_grad=True), torch.full((2, 6), tiny, requires_grad=True)
    joined = MatchedJoin()(y, x)
    joined.sum().backward()
    assert joined.isfinite().all()
    assert y.grad is not None
    assert x.grad is not None
    assert y.grad.isfinite().all()
    assert x.grad.isfinite().all()


def test_only_zero_slices_stay_zero() -> None:
    x = torch.randn(2, 6)
    x[0] = 0.0
    fresh = MatchedJoin()(torch.randn(2, 4), x)[:, 4:]
    assert torch.count_nonzero(fresh[0]) == 0
    assert torch.count_nonzero(fresh[1]) == 6


class Gain(nn.Module):
    """A join with a parameter."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.cat((y, self.gain * x), -1)


def identities(count: int) -> list[nn.Module]:
    return [nn.Identity() for _ in range(count)]


def test_a_module_is_used_at_every_join() -> None:
    gain = Gain()
    net = StepsNet(identities(3), [1, 2, 3], join=gain)
    assert net(torch.ones(3)).tolist() == [1.0, 2.0, 2.0]
    net(torch.ones(3)).sum().backward()
    assert gain.gain.grad is not None
    assert gain.gain.grad.tolist() == [2.0]


def test_a_function_makes_joins_that_fit_their_widths() -> None:
    asked = []

    def make(y_width: int, x_width: int, channel_dim: int) -> nn.Module:
        asked.append((y_width, x_width, channel_dim))
        return Gain(x_width)

    net = StepsNet(identities(3), [2, 5, 9], join=make)
    assert asked == [(2, 3, -1), (5, 4, -1)]
    assert net(torch.ones(9)).tolist() == [1.0] * 2 + [2.0] * 7


def test_a_parameter_of_a_join_gets_a_gradient() -> None:
    net = StepsNet(identities(2), [1, 2], join=Gain())
    net(torch.ones(2)).sum().backward()
    gradient = net.get_parameter("joins.0.gain").grad
    assert gradient is not None
    assert gradient.tolist() == [1.0]


def test_the_matched_factor_has_a_gradient_but_not_along_the_slice() -> None:
    y, x = torch.randn(2, 4, requires_grad=True), torch.randn(2, 6, requires_grad=True)
    joined = StepsNet(identities(2), [4, 10], join="matched_grad").joins[0](y, x)
    (joined[:, 4:] * torch.randn(2, 6)).sum().backward()
    assert y.grad is not None
    assert x.grad is not None
    assert torch.count_nonzero(y.grad) == 8  # through the factor alone
    torch.testing.assert_close(
        (x.grad * x).sum(1), torch.zeros(2), atol=1e-5, rtol=0
    )  # growing x_i along itself changes nothing


def test_an_unknown_join_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(
        UsageError, match=r"no join 'mached'; nearest: matched_grad; known are plain, matched_grad$"
    ):
        StepsNet(identities(2), [1, 2], join="mached")
