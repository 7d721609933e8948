"""Backbones return maps with the channels and strides of feature_info, and contain no unused parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.models import FeatureBackbone, create_model
from tests.models.tiny import VARIANTS, VISION, example, shake, vision

vision_variants = pytest.mark.parametrize("key", [key for key in VARIANTS if "transformer" not in key])
every_vision_model = pytest.mark.parametrize("name", VISION)


def backbone(key: str, out_indices: int | list[int] | None = None) -> FeatureBackbone:
    name, options = VARIANTS[key]
    return create_model(name, features_only=True, out_indices=out_indices, **options)


def check_maps(maps: list[Tensor], info: list[dict[str, int]], sides: tuple[int, int]) -> None:
    assert len(maps) == len(info)
    for found, told in zip(maps, info, strict=True):
        assert found.shape == (2, told["num_chs"], *(-(-side // told["reduction"]) for side in sides))


@vision_variants
@pytest.mark.parametrize("sides", [(32, 32), (37, 51)], ids=str)
def test_maps_have_the_channels_and_strides_of_feature_info(key: str, sides: tuple[int, int]) -> None:
    model = backbone(key)
    check_maps(model(torch.randn(2, 3, *sides)), model.feature_info, sides)
    assert model.feature_info.channels() == [info["num_chs"] for info in model.feature_info]
    assert model.feature_info.reduction() == [info["reduction"] for info in model.feature_info]


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("test_steps_deit", [8] * 8),
        ("test_steps_swin", [2, 4, 8, 16]),
        ("test_steps_resnet", [2, 4, 8, 16, 32]),  # the first is the stem's
    ],
)
def test_hierarchies_have_a_map_per_stage_and_deit_one_per_block(name: str, offered: list[int]) -> None:
    model = vision(name)
    assert model.feature_info.reduction() == offered
    assert all(model.get_submodule(module) for module in model.feature_info.module_name())


@pytest.mark.parametrize(("name", "maps"), [("test_steps_deit", 3), ("test_steps_swin", 4), ("test_steps_resnet", 5)])
def test_features_only_returns_as_many_maps_as_timm(name: str, maps: int) -> None:
    model = backbone(name)
    assert len(model(torch.randn(2, 3, 32, 32))) == maps == len(model.feature_info.get_dicts(["num_chs"]))


@vision_variants
def test_intermediates_come_with_the_same_last_map(key: str) -> None:
    model = shake(vision(key)).eval()
    x = example(model)
    last, maps = model.forward_intermediates(x)
    assert torch.equal(last, model.forward_features(x))
    only = model.forward_intermediates(x, intermediates_only=True)
    assert len(maps) == len(model.feature_info)
    assert all(torch.equal(a, b) for a, b in zip(maps, only, strict=True))


@every_vision_model
@pytest.mark.parametrize(("indices", "chosen"), [([0, 2], [0, 2]), (2, [-2, -1]), ([-1], [-1])], ids=str)
def test_some_maps_are_the_same_as_among_all(name: str, indices: int | list[int], chosen: list[int]) -> None:
    model = vision(name).eval()
    x = example(model)
    every = model.forward_intermediates(x, intermediates_only=True)
    some = model.forward_intermediates(x, indices, intermediates_only=True)
    assert all(torch.equal(a, every[index]) for a, index in zip(some, chosen, strict=True))


@vision_variants
@pytest.mark.parametrize("out_indices", [None, [0, 1]], ids=str)
def test_a_backbone_has_no_unused_parameters(key: str, out_indices: list[int] | None) -> None:
    model = backbone(key, out_indices)
    shake(model.model)
    torch.stack([found.square().mean() for found in model(torch.randn(2, 3, 32, 32))]).sum().backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == []


@every_vision_model
def test_a_cut_backbone_gives_the_same_maps(name: str) -> None:
    whole = shake(vision(name)).eval()
    cut = create_model(name, features_only=True, out_indices=[0, 1]).eval()
    cut.model.load_state_dict(whole.state_dict(), strict=False)
    x = example(whole)
    for ours, theirs in zip(cut(x), whole.forward_intermediates(x, [0, 1], intermediates_only=True), strict=True):
        assert torch.equal(ours, theirs)


def test_checkpointing_works_in_a_backbone() -> None:
    model = backbone("test_steps_deit")
    model.set_grad_checkpointing()
    torch.stack([found.square().mean() for found in model(torch.randn(2, 3, 32, 32))]).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("indices", [[4], [1, 0], [0, 0], 5, [-5], [], 0, -1], ids=str)
def test_invalid_out_indices_are_refused(indices: int | list[int]) -> None:
    with pytest.raises(UsageError, match=r"must be growing indices from 0 to 3, the feature maps of Swin"):
        create_model("test_swin", features_only=True, out_indices=indices)


def test_language_models_have_no_feature_maps() -> None:
    with pytest.raises(UsageError, match="test_transformer takes text, not images"):
        create_model("test_transformer", features_only=True)
