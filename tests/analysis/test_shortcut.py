"""γ against its definition, on networks whose γ is known by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.analysis import diagnose, gradient_flow, shortcut_ratio
from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, Stack, StepsNet
from stepsnet.models import create_model
from stepsnet.models.model import Model
from tests.analysis.nets import Foreign, Linear, Scale, Shift, no_hooks


def make(name: str) -> Model:
    model = create_model(name)
    assert isinstance(model, Model)
    return model


def sigma(z: Tensor, dim: int = -1) -> Tensor:
    return z.std(dim, correction=0)


def ratio(z_0: Tensor, z: Tensor, dim: int = -1) -> float:
    return float((sigma(z_0, dim) / sigma(z, dim)).mean())


def test_one_step_is_the_ratio_of_deviations() -> None:
    net = StepsNet([Stack([Scale(2.0), Scale(2.0)])], [6])
    found = shortcut_ratio(net, torch.randn(3, 5, 6))
    assert found.gamma == pytest.approx([0.5, 0.25])
    assert found.mean == pytest.approx(0.375)


def test_channels_that_join_later_are_part_of_the_state() -> None:
    x = torch.randn(2, 7, 6)
    net = StepsNet([Stack([Scale(3.0)]), Stack([Scale(2.0)])], [4, 6])
    waiting = torch.cat((3 * x[..., :4], x[..., 4:]), dim=-1)
    done = torch.cat((6 * x[..., :4], 2 * x[..., 4:]), dim=-1)
    assert shortcut_ratio(net, x).gamma == pytest.approx([ratio(x, waiting), ratio(x, done)])


def test_channels_before_a_matched_join_are_unscaled() -> None:
    x = torch.randn(2, 7, 6)
    joins = ("plain", "matched_grad")
    nets = [StepsNet([Stack([Scale(3.0)]), Stack([Scale(1.0)])], [4, 6], join=join) for join in joins]
    plain, matched = (shortcut_ratio(net, x) for net in nets)
    assert plain.gamma[0] == pytest.approx(matched.gamma[0])
    assert plain.gamma[1] > matched.gamma[1]


def test_channels_may_be_in_any_dimension() -> None:
    x = torch.randn(2, 6, 4, 4)
    waiting = torch.cat((3 * x[:, :4], x[:, 4:]), dim=1)
    found = shortcut_ratio(StepsNet([Stack([Scale(3.0)]), Stack([])], [4, 6], channel_dim=1), x)
    assert found.gamma == pytest.approx([ratio(x, waiting, 1)])


def test_the_reverse_state_keeps_finished_channels() -> None:
    x = torch.randn(2, 7, 6)
    net = ReverseStepsNet([Stack([Scale(2.0)]), Stack([Scale(5.0)])], [6, 4])
    last = torch.cat((10 * x[..., :4], 2 * x[..., 4:]), dim=-1)
    assert shortcut_ratio(net, x).gamma == pytest.approx([0.5, ratio(x, last)])


def test_the_reverse_state_has_each_channel_where_z_0_has_it() -> None:
    net = ReverseStepsNet([Stack([Scale(1.0)]), Stack([Scale(1.0)]), Stack([Scale(1.0)])], [6, 4, 3])
    assert shortcut_ratio(net, torch.randn(2, 7, 6)).cosine == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("name", ["test_steps_deit", "test_steps_swin", "test_steps_resnet", "test_deit"])
def test_every_block_of_the_packages_models_has_a_gamma(name: str) -> None:
    model = make(name)
    gamma = shortcut_ratio(model, torch.randn(2, 3, 32, 32)).gamma
    assert len(gamma) == len(model.blocks_in_order())
    assert all(0 < value < math.inf for value in gamma)


def test_each_stage_has_its_own_start() -> None:
    model = make("test_swin")
    found = shortcut_ratio(model, torch.randn(1, 3, 32, 32))
    stages = [plan.blocks for plan in model.plans]
    starts = [found.sigma_0[sum(stages[:number])] for number in range(len(stages))]
    assert len(set(starts)) == len(stages)


def test_a_language_model_takes_ids() -> None:
    gamma = shortcut_ratio(create_model("test_steps_transformer"), torch.randint(0, 256, (2, 16))).gamma
    assert len(gamma) == 8


def test_blocks_of_another_library_can_be_given() -> None:
    model = Foreign()
    assert shortcut_ratio(model, torch.randn(2, 3, 8), blocks=model.layers).gamma == pytest.approx(
        [0.5, 0.25, 0.5, 0.25]
    )


def test_a_block_that_changes_the_shape_starts_a_stage() -> None:
    model = nn.Sequential(nn.Linear(4, 8), Scale(2.0))
    assert shortcut_ratio(model, torch.randn(3, 4), blocks=model).gamma == pytest.approx([1.0, 0.5])


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="blocks="):
        shortcut_ratio(nn.Linear(2, 2), torch.randn(1, 2))


def test_the_model_is_left_unchanged() -> None:
    model = create_model("test_steps_resnet")
    model.train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    before: dict[str, Any] = {name: buffer.clone() for name, buffer in model.named_buffers()}
    shortcut_ratio(model, torch.randn(2, 3, 32, 32))
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert not frozen.training
    assert model.training
    assert no_hooks(model)


def test_positions_with_equal_channels_do_not_count() -> None:
    x = torch.randn(1, 3, 4)
    x[0, 1] = 0
    assert shortcut_ratio(StepsNet([Stack([Scale(2.0)])], [4]), x).gamma == pytest.approx([0.5])


def test_the_weights_of_eq_2_give_the_normalised_state() -> None:
    x = torch.randn(1, 1, 8, dtype=torch.float64)  # one position, so that no mean hides anything
    net = StepsNet([Stack([Linear(8), Linear(8)])], [8]).double()
    z = net(x).detach()
    found = shortcut_ratio(net, x)
    hat = [(tensor - tensor.mean()) / sigma(tensor) for tensor in (x, z - x, z)]
    torch.testing.assert_close(found.gamma[-1] * hat[0] + found.residual_weight[-1] * hat[1], hat[2])
    assert found.residual_sigma[-1] == pytest.approx(float(sigma(z - x)))


def test_a_branch_is_what_one_block_adds() -> None:
    x = torch.randn(2, 3, 6)
    net = StepsNet([Stack([Shift(6, 1), Shift(6, 2)])], [6])
    first, second = (block.noise.detach() for block in net.steps[0].blocks)  # type: ignore[union-attr]
    found = shortcut_ratio(net, x)
    assert found.branch_sigma == pytest.approx([float(sigma(first)), float(sigma(second))])
    assert found.branch_weight[1] == pytest.approx(float((sigma(second) / sigma(net(x).detach())).mean()))
    assert found.residual_sigma[1] == pytest.approx(float(sigma(first + second)))


def test_the_join_is_part_of_no_branch() -> None:
    net = StepsNet([Stack([Scale(3.0)]), Stack([Scale(1.0)])], [4, 6], join="matched_grad")
    assert shortcut_ratio(net, torch.randn(2, 3, 6)).branch_sigma[1] == pytest.approx(0.0)


def test_the_cosine_is_that_of_the_whole_state() -> None:
    x = torch.randn(2, 7, 6)
    net = StepsNet([Stack([Scale(-1.0)]), Stack([Scale(1.0)])], [4, 6])
    turned = torch.cat((-x[..., :4], x[..., 4:]), dim=-1)
    expected = float(nn.functional.cosine_similarity(x, turned, dim=-1).mean())
    assert shortcut_ratio(net, x).cosine == pytest.approx([expected, expected])


def test_any_block_can_be_the_start() -> None:
    net = StepsNet([Stack([Scale(2.0), Scale(2.0), Scale(4.0)])], [6])
    found = shortcut_ratio(net, torch.randn(3, 5, 6), start=1)
    assert found.gamma == pytest.approx([0.5, 0.125])
    assert found.block == [2, 3]


def test_later_stages_have_their_own_start() -> None:
    model = Foreign()
    assert shortcut_ratio(model, torch.randn(2, 3, 8), blocks=model.layers, start=1).gamma == pytest.approx(
        [0.5, 0.5, 0.25]
    )


@pytest.mark.parametrize("start", [-1, 2, 3])
def test_a_start_without_later_blocks_is_refused(start: int) -> None:
    with pytest.raises(UsageError, match="start"):
        shortcut_ratio(StepsNet([Stack([Scale(2.0), Scale(2.0)])], [6]), torch.randn(1, 6), start=start)


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0)


@pytest.mark.parametrize("look", [shortcut_ratio, gradient_flow, diagnose])
@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ("layers", "blocks is str 'layers'"),
        (["layers.0"], "blocks is list"),
        (Scale(1.0), "blocks is Scale"),
        ([], "blocks is empty"),
    ],
)
def test_blocks_that_are_not_modules_are_refused(look: Callable[..., object], blocks: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        look(nn.Sequential(Scale(2.0)), torch.randn(2, 8), blocks=blocks)


def test_a_dimension_that_the_states_do_not_have_is_refused() -> None:
    model = nn.Sequential(Scale(2.0))
    with pytest.raises(UsageError, match=r"channel_dim is 7, .* shape \(2, 8\)"):
        shortcut_ratio(model, torch.randn(2, 8), blocks=model, channel_dim=7)


def test_blocks_out_of_order_are_refused() -> None:
    net = nn.Sequential(Scale(2.0), Scale(2.0))
    with pytest.raises(UsageError, match="in the order"):
        shortcut_ratio(net, torch.randn(2, 8), blocks=[net[1], net[0]])
    assert no_hooks(net)


def test_blocks_that_are_not_called_are_refused() -> None:
    with pytest.raises(UsageError, match="does not call any of the blocks"):
        shortcut_ratio(nn.Sequential(Scale(2.0)), torch.randn(2, 8), blocks=[Scale(1.0)])


def test_blocks_that_change_their_input_in_place_are_measured_correctly() -> None:
    model = nn.Sequential(InPlace(), InPlace())
    found = shortcut_ratio(model, torch.randn(3, 4), blocks=model)
    assert found.gamma == pytest.approx([0.5, 0.25])
    assert found.branch_weight == pytest.approx([0.5, 0.5])


def test_the_result_becomes_json() -> None:
    found = shortcut_ratio(make("test_swin"), torch.randn(1, 3, 32, 32))
    assert json.loads(json.dumps(found.to_json()))["mean"] == pytest.approx(found.mean)
