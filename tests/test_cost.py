"""Costs are counted right: as Eq. 3, for every registered model, for other input sizes, options and modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.blocks.attention import Attention
from stepsnet.blocks.layers import Mlp
from stepsnet.cost import Cost, count_macs, count_params
from stepsnet.errors import UsageError
from stepsnet.models import FeatureBackbone, Model, compile_blocks, cost_of, create_model
from tests.models.tiny import STEPS, TINY, VISION


def counted_in_full(model: Model, input_size: tuple[int, ...] | None = None) -> int:
    """MACs of a pass that runs every block."""
    return count_macs(model, model.dummy_input(input_size))


@pytest.mark.parametrize(
    "name", [*TINY, "steps_deit_small", "steps_swin_tiny", "steps_resnet50", "swinpp_tiny", "transformer_30m"]
)
def test_blocks_of_one_kind_may_be_counted_once(name: str) -> None:
    model = create_model(name, device="meta")
    assert model.cost().macs == counted_in_full(model)


@pytest.mark.parametrize("name", STEPS)
def test_blocks_of_one_kind_may_be_counted_once_with_several_streams(name: str) -> None:
    model = create_model(name, residual="hyper", device="meta")
    assert model.cost().macs == counted_in_full(model)


@pytest.mark.parametrize("name", VISION)
@pytest.mark.parametrize("size", [(3, 33, 50), (3, 64, 47)], ids=str)
def test_blocks_of_one_kind_may_be_counted_once_at_other_image_sizes(name: str, size: tuple[int, ...]) -> None:
    model = create_model(name, device="meta")
    assert model.cost(size).macs == counted_in_full(model, size)


# Computed by hand-written formulas for each layer, which agreed with the counts of all registered models.
FORMULAS: list[tuple[str, dict[str, Any], Cost]] = [
    (
        "swin_tiny",
        {"img_size": 32},
        Cost(12, 65, 28_288_354, 103_229_952),
    ),  # the last map is 1 × 1, smaller than a window
    ("swin_tiny", {"img_size": (250, 100)}, Cost(12, 65, 28_288_354, 2_830_467_072)),  # odd maps, padded at every stage
    ("swinpp_tiny", {"img_size": 90, "patch_size": 3}, Cost(12, 89, 28_507_138, 2_020_434_816)),
    ("swin_tiny", {"window_size": 5, "head_dim": 16}, Cost(12, 65, 28_287_388, 4_847_562_240)),
    ("deit_tiny", {"img_size": 100, "num_classes": 0}, Cost(12, 61, 5_496_192, 284_166_144)),
    ("resnet50", {"img_size": 75, "in_chans": 1}, Cost(16, 50, 25_550_760, 542_906_624)),
    ("steps_resnet50", {"macro": "reverse"}, Cost(34, 104, 25_567_176, 4_088_088_861)),
    ("test_steps_deit", {"join": "matched_grad"}, Cost(8, 42, 57_862, 1_022_200)),
    ("test_steps_transformer", {"seq_len": 1}, Cost(8, 41, 59_264, 59_232)),
    ("test_steps_transformer", {"seq_len": 7}, Cost(8, 41, 59_264, 429_408)),
    ("test_steps_transformer", {"seq_len": 300}, Cost(8, 41, 59_264, 49_344_000)),
]


@pytest.mark.parametrize(
    ("name", "options", "cost"), FORMULAS, ids=[f"{name} {options}" for name, options, _ in FORMULAS]
)
def test_costs_are_those_of_the_formulas(name: str, options: dict[str, Any], cost: Cost) -> None:
    assert create_model(name, device="meta", **options).cost() == cost


@pytest.mark.parametrize("macro", ["steps", "reverse"])
@pytest.mark.parametrize("name", [name for name in TINY if "steps" in name])
def test_the_reverse_design_costs_the_same(name: str, macro: str) -> None:
    assert cost_of(create_model(name, macro=macro)) == cost_of(name)


@pytest.mark.parametrize(("N", "C", "D"), [(197, 192, 12), (50, 48, 3), (1, 16, 1)])
def test_equation_3(N: int, C: int, D: int) -> None:
    """12NC²D + 2N²CD for D Transformer blocks of width C over N tokens: a test of the counter."""
    blocks = nn.Sequential(
        *(nn.Sequential(nn.LayerNorm(C), Attention(C, 4), nn.LayerNorm(C), Mlp(C, 4 * C)) for _ in range(D))
    )
    equation = 12 * N * C * C * D + 2 * N * N * C * D
    assert count_macs(blocks, torch.zeros(1, N, C)) == equation


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

    assert cost_of(Tied(), input_size=(8,)) == Cost(blocks=None, layers=None, params=64, macs=128)


def test_modules_of_other_libraries_are_counted() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    expected = Cost(blocks=None, layers=None, params=3 * 8 * 9 + 8 + 288 * 5 + 5, macs=36 * 3 * 8 * 9 + 288 * 5)
    assert cost_of(module, input_size=(3, 8, 8)) == expected


def test_modules_of_other_libraries_need_an_input_size() -> None:
    with pytest.raises(UsageError, match="the input of Linear is unknown; give input_size"):
        cost_of(nn.Linear(2, 2))


def test_a_backbone_costs_less_than_its_model() -> None:
    backbone = create_model("test_swin", features_only=True, out_indices=[0, 1])
    assert isinstance(backbone, FeatureBackbone)
    cost = cost_of(backbone, input_size=(3, 32, 32))
    assert 0 < cost.macs < cost_of("test_swin").macs
    assert 0 < cost.params < cost_of("test_swin").params


def test_the_cost_of_a_name() -> None:
    assert cost_of("deit_small") == Cost(blocks=12, layers=62, params=22_050_664, macs=4_598_882_304)


def test_counting_does_not_change_the_model() -> None:
    model = create_model("test_resnet")
    frozen = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    frozen.eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.cost()
    assert model.training
    assert not frozen.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_parameters_of_residual_designs_are_counted() -> None:
    assert count_params(create_model("test_deit", residual="layerscale")) == cost_of("test_deit").params + 8 * 32


def test_a_model_with_compiled_blocks_is_counted_without_compiling() -> None:
    def backend(*_: object) -> None:
        raise AssertionError("compiled")

    model = compile_blocks(create_model("test_steps_swin"), backend=backend)
    assert model.cost() == cost_of("test_steps_swin")
