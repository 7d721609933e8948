"""Masked channels and removed blocks, on networks whose metric is known by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.analysis import drop_blocks, mask_paths
from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, Stack, StepsNet
from stepsnet.models import create_model
from tests.analysis.nets import Linear, Scale, no_hooks

Batch = Tensor


def mean_output(model: nn.Module, batch: Batch) -> tuple[float, float]:
    assert not model.training
    output = model(batch)
    return float(output.sum()), output.numel()


def test_the_first_or_the_last_channels_are_zeroed() -> None:
    net = StepsNet([Stack([Scale(2.0)]), Stack([Scale(1.0)])], [4, 8])
    found = mask_paths(net, [torch.ones(2, 3, 8)], mean_output, [1, 4])
    assert found.sizes == [0, 1, 4]
    assert found.slow == pytest.approx([12 / 8, 10 / 8, 4 / 8])
    assert found.fast == pytest.approx([12 / 8, 11 / 8, 8 / 8])


def test_batches_are_weighted_by_their_count() -> None:
    net = StepsNet([Stack([Scale(1.0)]), Stack([Scale(1.0)])], [1, 2])
    batches = iter([torch.ones(1, 2), torch.zeros(3, 2)])  # an iterator serves every row all the same
    found = mask_paths(net, batches, mean_output, [1])
    assert found.slow == pytest.approx([0.25, 0.125])
    assert found.fast == pytest.approx([0.25, 0.125])


def test_sizes_divide_the_narrower_path_by_six() -> None:
    net = StepsNet([Stack([Scale(1.0)]), Stack([Scale(1.0)])], [192, 384])
    assert mask_paths(net, [torch.ones(1, 384)], mean_output).sizes == [0, 32, 64, 96, 128, 160]


def test_a_very_narrow_path_has_fewer_sizes() -> None:
    net = StepsNet([Stack([Scale(1.0)]), Stack([Scale(1.0)])], [4, 8])
    assert mask_paths(net, [torch.ones(1, 8)], mean_output).sizes == [0, 1, 2, 3]


def test_channels_of_feature_maps_are_zeroed() -> None:
    net = StepsNet([Stack([Scale(1.0)]), Stack([Scale(1.0)])], [2, 4], channel_dim=1)
    assert mask_paths(net, [torch.ones(1, 4, 3, 3)], mean_output, [1]).slow == pytest.approx([1.0, 0.75])


def test_a_reverse_network_has_paths() -> None:
    net = ReverseStepsNet([Stack([Scale(1.0)]), Stack([Scale(2.0)])], [6, 4])
    assert mask_paths(net, [torch.ones(1, 6)], mean_output, [1]).slow == pytest.approx([10 / 6, 8 / 6])


@pytest.mark.parametrize("sizes", [[0], [5], [-1]])
def test_sizes_beyond_the_narrower_path_are_refused(sizes: list[int]) -> None:
    net = StepsNet([Stack([Scale(2.0)]), Stack([Scale(1.0)])], [4, 8])
    with pytest.raises(UsageError, match="must be from 1 to 4"):
        mask_paths(net, [torch.ones(1, 8)], mean_output, sizes)


def table_7() -> StepsNet:
    return StepsNet(
        [Stack([Linear(width) for _ in range(depth)]) for width, depth in ((192, 12), (272, 6), (384, 6))],
        [192, 272, 384],
    )


def test_steps_deit_small_loses_four_two_or_one_block() -> None:
    assert drop_blocks(table_7(), [torch.ones(1, 384)], mean_output).dropped == [0, 4, 2, 1]


def test_a_dropped_block_returns_its_input() -> None:
    first, last = Linear(4), Linear(6)
    nn.init.eye_(first.a.weight)  # z + z
    nn.init.eye_(last.a.weight)
    net = StepsNet([Stack([first]), Stack([last])], [4, 6])
    found = drop_blocks(net, [torch.ones(1, 6)], mean_output)
    assert found.steps == ["none", "step 1", "step 2"]
    assert found.dropped == [0, 1, 1]  # two by parameters, but the step has one
    assert found.metric == pytest.approx([(4 * 4 + 2 * 2) / 6, (4 * 2 + 2 * 2) / 6, (4 * 2 + 2) / 6])
    assert found.share == pytest.approx([0.0, 16 / 52, 36 / 52])


def logits_mean(model: nn.Module, batch: Any) -> tuple[float, float]:
    return mean_output(model, batch)


@pytest.mark.parametrize("name", ["test_steps_deit", "test_steps_swin", "test_steps_resnet", "test_steps_swinpp"])
def test_models_of_the_package_work_and_are_left_unchanged(name: str) -> None:
    model = create_model(name).train()
    batches = [torch.randn(2, 3, 32, 32)]
    masked, dropped = mask_paths(model, batches, logits_mean, [2]), drop_blocks(model, batches, logits_mean)
    assert masked.slow[0] == masked.fast[0] == dropped.metric[0]
    assert dropped.metric[1] != dropped.metric[0] or name == "test_steps_resnet"  # whose branches start at zero
    assert model.training
    assert no_hooks(model)


def test_only_stages_with_steps_lose_blocks() -> None:
    found = drop_blocks(create_model("test_steps_swin"), [torch.randn(1, 3, 32, 32)], mean_output)
    assert {step.partition(",")[0] for step in found.steps[1:]} == {"stage 3", "stage 4"}


def test_a_network_without_steps_is_refused() -> None:
    for tool in (mask_paths, drop_blocks):
        with pytest.raises(UsageError, match="no StepsNet of several steps"):
            tool(create_model("test_deit"), [torch.randn(1, 3, 32, 32)], mean_output)


def test_no_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="no batches"):
        drop_blocks(table_7(), [], mean_output)


def test_results_become_json() -> None:
    batches = [torch.ones(1, 384)]
    masked, dropped = mask_paths(table_7(), batches, mean_output, [1]), drop_blocks(table_7(), batches, mean_output)
    assert list(masked.to_json()) == ["sizes", "slow", "fast"]
    assert list(dropped.to_json()) == ["steps", "dropped", "share", "metric"]
