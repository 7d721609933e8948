"""Counting agrees with the formulas, on every model and at any size; and the counter counts what it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.blocks.attention import Attention
from stepsnet.blocks.mlp import Mlp
from stepsnet.cost import Cost, count_cost, count_macs, count_params, formulas
from stepsnet.errors import UsageError
from stepsnet.models import FeatureBackbone, cost_of, create_model, list_models
from tests.models.zoo import TINY, VISION


@pytest.mark.parametrize("name", list_models())
def test_formula_and_count_agree_on_every_model(name: str) -> None:
    model = create_model(name, device="meta")
    assert cost_of(model) == model.closed_form()


@pytest.mark.parametrize("name", VISION)
@pytest.mark.parametrize("size", [(3, 32, 32), (3, 33, 50), (3, 64, 47), (3, 224, 224)], ids=str)
def test_they_agree_at_other_picture_sizes(name: str, size: tuple[int, ...]) -> None:
    model = create_model(name, device="meta")
    assert count_cost(model, input_size=size) == model.closed_form(size)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("swin_tiny", {"img_size": 32}),  # the last map is 1 × 1, smaller than a window
        ("swin_tiny", {"img_size": (250, 100)}),  # odd maps, padded at every stage
        ("swinpp_tiny", {"img_size": 90, "patch_size": 3}),
        ("swin_tiny", {"window_size": 5, "head_dim": 16}),
        ("deit_tiny", {"img_size": 100, "num_classes": 0}),
        ("resnet50", {"img_size": 75, "in_chans": 1}),
        ("steps_resnet50", {"macro": "reverse"}),
        ("test_steps_deit", {"join": "matched"}),
    ],
)
def test_they_agree_under_other_options(name: str, options: dict[str, Any]) -> None:
    model = create_model(name, device="meta", **options)
    assert cost_of(model) == model.closed_form()


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_they_agree_at_other_text_lengths(tokens: int) -> None:
    model = create_model("test_steps_transformer", device="meta")
    assert count_cost(model, input_size=(tokens,)) == model.closed_form((tokens,))


@pytest.mark.parametrize("macro", ["steps", "reverse"])
@pytest.mark.parametrize("name", [name for name in TINY if "steps" in name])
def test_the_reverse_design_costs_the_same(name: str, macro: str) -> None:
    assert cost_of(create_model(name, macro=macro)) == cost_of(name)


@pytest.mark.parametrize(("N", "C", "D"), [(197, 192, 12), (50, 48, 3), (1, 16, 1)])
def test_equation_3(N: int, C: int, D: int) -> None:
    """12NC²D + 2N²CD for D Transformer blocks of width C over N tokens: a test of the counter."""
    blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(C), Attention(C, 4), nn.LayerNorm(C), Mlp(C, 4 * C)) for _ in range(D)))
    equation = 12 * N * C * C * D + 2 * N * N * C * D
    assert count_macs(blocks, torch.zeros(1, N, C)) == equation
    assert (formulas.transformer_block(C, N) * D).macs == equation


def test_batches_multiply() -> None:
    model = create_model("test_swin")
    assert count_macs(model, torch.zeros(4, 3, 32, 32)) == 4 * cost_of(model).macs


def test_tied_parameters_count_once_and_their_products_twice() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8, bias=False)
            self.second = nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    assert count_cost(Tied(), torch.zeros(1, 8)) == Cost(blocks=None, layers=None, params=64, macs=128)


def test_a_module_from_elsewhere_counts_too() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    expected = Cost(blocks=None, layers=None, params=3 * 8 * 9 + 8 + 288 * 5 + 5, macs=36 * 3 * 8 * 9 + 288 * 5)
    assert cost_of(module, input_size=(3, 8, 8)) == expected


def test_a_module_from_elsewhere_has_to_be_told_its_input() -> None:
    with pytest.raises(UsageError, match="Linear does not say what it takes; give input_size"):
        cost_of(nn.Linear(2, 2))


def test_a_backbone_costs_less_than_its_model() -> None:
    backbone = create_model("test_swin", features_only=True, out_indices=[0, 1])
    assert isinstance(backbone, FeatureBackbone)
    cost = cost_of(backbone, input_size=(3, 32, 32))
    assert 0 < cost.macs < cost_of("test_swin").macs
    assert 0 < cost.params < cost_of("test_swin").params


def test_a_name_will_do() -> None:
    assert cost_of("deit_small") == Cost(blocks=12, layers=62, params=22_050_664, macs=4_598_882_304)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = create_model("test_resnet")
    frozen = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    frozen.eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    count_cost(model)
    assert model.training
    assert not frozen.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_parts_of_ones_own_are_counted() -> None:
    assert count_params(create_model("test_deit", residual="layerscale")) == cost_of("test_deit").params + 8 * 32


def test_costs_add_and_multiply() -> None:
    one = Cost(blocks=1, layers=2, params=3, macs=4)
    assert one + one * 2 == Cost(3, 6, 9, 12)
    assert (one + Cost(blocks=None, layers=None)).blocks is None
