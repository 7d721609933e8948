"""The other micro designs, each against its definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from stepsnet.blocks.attention import Attention
from stepsnet.blocks.conv import BasicBranch, BottleneckBranch
from stepsnet.blocks.layers import ConvMlp, Mlp, PatchEmbed, PatchMerging, SwiGLU, depthwise
from stepsnet.blocks.residual import DropPath
from stepsnet.blocks.window import WindowAttention
from stepsnet.macro import StepsNet


def test_patches_are_pieces_of_the_image() -> None:
    embed = PatchEmbed(3, 8, 4)
    x = torch.randn(2, 3, 8, 12)
    piece = x[1, :, 4:8, 8:12].flatten()
    torch.testing.assert_close(embed(x)[1, 1, 2], F.linear(piece, embed.proj.weight.flatten(1), embed.proj.bias))


def test_images_that_patches_do_not_divide_are_padded_at_their_end() -> None:
    embed = PatchEmbed(1, 4, 4)
    x = torch.randn(1, 1, 6, 9)
    assert torch.equal(embed(x), embed(F.pad(x, (0, 3, 0, 2))))
    assert embed(x).shape == (1, 2, 3, 4)


@pytest.mark.parametrize("size", [(4, 6), (5, 3)], ids=str)
def test_merging_puts_four_neighbours_side_by_side(size: tuple[int, int]) -> None:
    """Swin's order: top left, bottom left, top right, bottom right."""
    merging = PatchMerging(2, 5)
    x = torch.randn(1, *size, 2)
    whole = F.pad(x, (0, 0, 0, size[1] % 2, 0, size[0] % 2))
    neighbours = torch.cat([whole[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=-1)
    torch.testing.assert_close(merging(x), merging.reduction(merging.norm(neighbours)))


def test_the_mlp_and_its_convolution() -> None:
    mlp = ConvMlp(4, 8)
    nn.init.zeros_(mlp.conv.weight)
    assert mlp.conv.bias is not None
    nn.init.zeros_(mlp.conv.bias)
    plain = Mlp(4, 8)
    plain.load_state_dict(mlp.state_dict(), strict=False)
    x = torch.randn(1, 3, 3, 4)
    torch.testing.assert_close(mlp(x), plain(x))
    nn.init.normal_(mlp.conv.weight)
    assert not torch.allclose(mlp(x), plain(x))


def test_the_depthwise_convolution_sees_one_channel_and_its_neighbours() -> None:
    conv = depthwise(3)
    x = torch.zeros(1, 3, 5, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(conv(x)[0, 1, 2, 2], x)
    seen = gradient[0].nonzero()
    assert seen[:, 0].unique().tolist() == [1]
    assert seen[:, 1:].amin(dim=0).tolist() == [1, 1]
    assert seen[:, 1:].amax(dim=0).tolist() == [3, 3]


@pytest.mark.parametrize(("width", "hidden"), [(384, 1024), (32, 85), (272, 725)])
def test_swiglu_has_eight_thirds_of_the_width_inside(width: int, hidden: int) -> None:
    layer = SwiGLU(width)
    assert layer.down.in_features == hidden
    x = torch.randn(2, width)
    gate, up = layer.gate_up.weight.chunk(2)
    torch.testing.assert_close(layer(x), (F.silu(x @ gate.T) * (x @ up.T)) @ layer.down.weight.T)


@pytest.mark.parametrize("branch", [BasicBranch(6, 6), BottleneckBranch(24, 6)])
def test_a_new_branch_adds_zero(branch: nn.Module) -> None:
    x = torch.randn(2, 6 if isinstance(branch, BasicBranch) else 24, 5, 5)
    assert torch.count_nonzero(branch(x)) == 0


def test_a_branch_with_a_stride_halves_the_map() -> None:
    x = torch.randn(2, 6, 7, 8)
    assert BasicBranch(6, 10, stride=2)(x).shape == (2, 10, 4, 4)
    assert BottleneckBranch(6, 10, stride=2)(x).shape == (2, 40, 4, 4)


def drop(rate: float, x: Tensor) -> Tensor:
    return DropPath(rate)(x)


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    dropped = drop(0.25, torch.ones(4000, 2, 3))
    assert dropped.flatten(1).std(dim=1).max() == 0
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.05)


def test_drop_path_at_rate_zero_returns_its_input() -> None:
    x = torch.randn(3, 2)
    assert drop(0.0, x) is x


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: WindowAttention(4, 2, 2, shifted=False), (1, 3, 4, 4)),
        (lambda: WindowAttention(4, 2, 2, shifted=True), (1, 3, 4, 4)),
        (lambda: Attention(4, 2), (1, 3, 4)),
        (lambda: Mlp(4, 8), (1, 2, 4)),
        (lambda: ConvMlp(4, 8), (1, 2, 3, 4)),
        (lambda: SwiGLU(8), (1, 2, 8)),
        (lambda: PatchMerging(2, 4), (1, 4, 4, 2)),
        (lambda: BasicBranch(2, 4).eval(), (1, 2, 4, 4)),
        (lambda: StepsNet([nn.Linear(2, 2), nn.Tanh()], [2, 4], join="plain"), (3, 4)),
        (lambda: StepsNet([nn.Linear(2, 2), nn.Tanh()], [2, 4], join="matched_grad"), (3, 4)),
    ],
)
def test_first_and_second_derivatives_are_those_of_finite_differences(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    part = make().double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no second derivative
        assert torch.autograd.gradcheck(part, (x,))
        assert torch.autograd.gradgradcheck(part, (x,))
