"""Every vision model gives maps of several resolutions, at any image size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepsnet.dense.maps import Maps, deepest_of_each_resolution, make_maps
from stepsnet.models import FeatureBackbone, VisionModel, create_model, list_models

VISION = [name for name in list_models("test_*") if "transformer" not in name]


def maps_of(name: str, *, frozen_norm: bool = False) -> Maps:
    model = create_model(name)
    assert isinstance(model, VisionModel)
    return make_maps(FeatureBackbone(model, deepest_of_each_resolution(model)), frozen_norm=frozen_norm)


@pytest.mark.parametrize("size", [(64, 64), (50, 83)])
@pytest.mark.parametrize("name", VISION)
def test_four_maps_of_falling_resolution_at_any_size(name: str, size: tuple[int, int]) -> None:
    maps, patch = maps_of(name), 8
    found = maps(torch.randn(1, 3, *size))
    assert len(found) == 4
    assert [features.shape[1] for features in found] == maps.channels
    assert [later // earlier for earlier, later in zip(maps.reductions, maps.reductions[1:], strict=False)] == [2, 2, 2]
    for features, reduction in zip(found, maps.reductions, strict=True):
        for side, length in zip(
            features.shape[2:], size, strict=True
        ):  # a Vision Transformer's finer maps cover its last patch wholly
            assert length // reduction <= side <= -(-length // patch) * patch / reduction + 1


@pytest.mark.parametrize("name", VISION)
def test_every_parameter_is_used(name: str) -> None:
    maps = maps_of(name)
    sum(features.square().mean() for features in maps(torch.randn(2, 3, 64, 64))).backward()
    assert [name for name, parameter in maps.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("test_resnet", ["stages.0", "stages.1", "stages.2", "stages.3"]),
        ("test_swin", ["stages.0", "stages.1", "stages.2", "stages.3"]),
        ("test_steps_deit", ["net.steps.2.blocks.1"]),
    ],
)
def test_the_deepest_map_of_each_resolution_after_the_stem_is_used(name: str, modules: list[str]) -> None:
    model = create_model(name)
    assert isinstance(model, VisionModel)
    assert [model.feature_info[index]["module"] for index in deepest_of_each_resolution(model)] == modules


@pytest.mark.parametrize(("frozen", "learns"), [(True, False), (False, True)])
def test_frozen_norms_keep_their_statistics(frozen: bool, learns: bool) -> None:
    maps = maps_of("test_resnet", frozen_norm=frozen).train()
    norms = [module for module in maps.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms[0].running_mean is not None
    before = norms[0].running_mean.clone()
    maps(torch.randn(2, 3, 64, 64))
    assert torch.equal(norms[0].running_mean, before) == (not learns)
