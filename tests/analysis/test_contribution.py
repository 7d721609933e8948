"""The contribution of steps and the effective rank, against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from stepsnet.analysis import step_contribution, width_use
from stepsnet.analysis.contribution import effective_rank
from stepsnet.macro import Stack, StepsNet
from stepsnet.models import create_model
from tests.analysis.nets import Foreign, Scale, no_hooks

VISION_MODELS = ["test_steps_deit", "test_steps_swin", "test_steps_resnet", "test_steps_swinpp", "test_deit"]


def test_the_update_of_a_step_is_what_its_blocks_add() -> None:
    x = torch.ones(1, 1, 4)
    net = StepsNet([Stack([Scale(2.0), Scale(1.5)]), Stack([Scale(2.0)])], [2, 4])  # x → [3, 3, 1, 1] → [6, 6, 2, 2]
    found = step_contribution(net, x)
    final = math.sqrt(80)
    assert found.steps == ["step 1", "step 2"]
    assert found.blocks == [2, 1]
    assert found.norm == pytest.approx([math.sqrt(8) / final, math.sqrt(20) / final])
    assert found.share == pytest.approx([24 / 80, 40 / 80])
    assert found.z_0_share == pytest.approx([16 / 80] * 2)


def test_with_plain_joins_the_shares_add_up_to_one() -> None:
    found = step_contribution(create_model("test_steps_deit"), torch.randn(2, 3, 32, 32))
    assert found.z_0_share[0] + sum(found.share) == pytest.approx(1.0, abs=1e-5)


def test_stages_are_labelled() -> None:
    found = step_contribution(create_model("test_steps_swin"), torch.randn(1, 3, 32, 32))
    assert found.steps[0] == "stage 1, step 1"
    assert found.steps[-1] == "stage 4, step 3"


def test_a_stack_of_another_library_is_one_step() -> None:
    model = Foreign()
    found = step_contribution(model, torch.randn(1, 2, 8), blocks=model.layers)
    assert found.steps == ["stage 1, step 1", "stage 2, step 1"]
    assert found.norm == pytest.approx([0.75, 0.75])


def test_the_rank_counts_equal_directions() -> None:
    z = torch.cat((torch.eye(3), -torch.eye(3)))  # centred, three directions of equal variance
    assert float(effective_rank(z, -1)) == pytest.approx(3.0)


def test_the_rank_is_the_same_for_few_and_for_many_positions() -> None:
    z = torch.randn(5, 9)
    squares = torch.linalg.svdvals((z - z.mean(0)).double()).square()
    shares = squares / squares.sum()
    assert float(effective_rank(z, -1)) == pytest.approx(
        float(torch.exp(-(shares * shares.log())[shares > 0].sum())), rel=1e-6
    )


def test_a_constant_state_has_rank_one() -> None:
    assert float(effective_rank(torch.ones(4, 6), -1)) == 1.0


def test_a_state_that_is_not_finite_has_no_rank() -> None:
    assert math.isnan(float(effective_rank(torch.full((4, 6), math.nan), -1)))


def test_the_rank_is_the_same_for_any_channel_dimension() -> None:
    net = StepsNet([Stack([Scale(1.0)]), Stack([Scale(3.0)])], [2, 4], channel_dim=1)
    found = width_use(net, torch.randn(2, 4, 3, 3))
    assert found.width == [4, 4]
    assert found.limit == [4, 4]
    assert found.rank == pytest.approx(found.rank_0)
    assert 0 < found.use[0] <= 1


def test_few_positions_limit_the_rank() -> None:
    assert width_use(StepsNet([Stack([Scale(1.0)])], [8]), torch.randn(3, 8)).limit == [2]


@pytest.mark.parametrize("name", VISION_MODELS)
def test_models_of_the_package_are_measured_and_left_unchanged(name: str) -> None:
    model = create_model(name).train()
    x = torch.randn(2, 3, 32, 32)
    ranks = width_use(model, x).rank
    assert len(ranks) == len(model.blocks_in_order())
    assert all(math.isfinite(value) for value in (*ranks, *step_contribution(model, x).norm))
    assert model.training
    assert no_hooks(model)


def test_results_become_json() -> None:
    net = StepsNet([Stack([Scale(2.0)]), Stack([Scale(1.0)])], [2, 4])
    x = torch.randn(5, 4)
    assert len(step_contribution(net, x).to_json()["norm"]) == 2
    assert list(width_use(net, x).to_json())[:2] == ["rank", "rank_0"]
