"""Parameters without weight decay, layers for layer-wise learning rates, stochastic depth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepsnet.blocks.conv import BasicBranch
from stepsnet.blocks.residual import DropPath, Place
from stepsnet.models import create_model, layer_ids
from stepsnet.models.resnet import DownsamplingBlock
from tests.models.tiny import TINY, VARIANTS, example, shake, variant

every_variant = pytest.mark.parametrize("key", VARIANTS)
every_model = pytest.mark.parametrize("name", TINY)


@every_model
def test_no_weight_decay_names_parameters(name: str) -> None:
    model = create_model(name)
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "spared"), [("test_deit", "pos_embed"), ("test_deit", "cls_token"), ("test_swin", "bias_table")]
)
def test_positions_have_no_weight_decay(name: str, spared: str) -> None:
    assert any(parameter.endswith(spared) for parameter in create_model(name).no_weight_decay())


@every_variant
def test_layer_ids_are_complete_and_grow_from_stem_to_head(key: str) -> None:
    model = variant(key)
    ids = layer_ids(model)
    assert list(ids) == [name for name, _ in model.named_parameters()]
    blocks = len(model.blocks_in_order())
    assert set(ids.values()) == set(range(blocks + 2))
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    for number, block in enumerate(model.blocks_in_order(), start=1):
        assert {ids[own[id(parameter)]] for parameter in block.parameters()} == {number}


@pytest.mark.parametrize(
    ("name", "parameter", "layer"),
    [
        ("test_steps_deit", "pos_embed", 0),
        ("test_steps_deit", "head.weight", 9),
        ("test_steps_deit", "norm.weight", 9),
        ("test_steps_deit", "net.joins.1.gain", 7),  # 4 + 2 blocks before it
        ("test_steps_swin", "patch_embed.proj.weight", 0),
        ("test_steps_swin", "stages.1.merging.reduction.weight", 3),  # belongs to the block that follows
        ("test_steps_resnet", "stages.0.opening.branch.conv1.weight", 1),
        ("test_steps_resnet", "stem.conv.weight", 0),
        ("test_steps_transformer", "embed.weight", 0),
        ("test_steps_transformer", "norm.weight", 9),
    ],
)
def test_layer_ids_of_single_parameters(name: str, parameter: str, layer: int) -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

    assert layer_ids(create_model(name, join=lambda *_widths: Gain()))[parameter] == layer


@every_model
def test_drop_path_grows_linearly_along_the_whole_depth(name: str) -> None:
    model = create_model(name, drop_path_rate=0.3)
    rates = [module.rate for module in model.modules() if isinstance(module, DropPath)]
    levels = sorted(set(rates))
    assert rates == sorted(rates)
    assert levels[0] == 0.0
    assert levels[-1] == pytest.approx(0.3)
    torch.testing.assert_close(torch.tensor(levels).diff(), torch.full((len(levels) - 1,), 0.3 / (len(levels) - 1)))
    openings = len(model.plans) if model.family == "resnet" else 0
    assert len(levels) == len(model.blocks_in_order()) + openings


@every_model
def test_drop_path_only_acts_in_training(name: str) -> None:
    model = shake(create_model(name, drop_path_rate=0.9))
    x = example(model)
    assert torch.equal(model.eval()(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_drop_path_acts_on_the_first_blocks_of_resnet_stages() -> None:
    opening = DownsamplingBlock(4, Place(8, channel_dim=1, drop_path=0.5), 2, BasicBranch)
    torch.nn.init.ones_(opening.branch.bn2.weight)
    x = torch.randn(64, 4, 6, 6)
    shortcut_alone = torch.isclose(opening(x), opening.shortcut(x).relu()).flatten(1).all(dim=1)
    assert 10 < shortcut_alone.sum() < 54
