"""ResNet's maps lie channels-last in memory from the first convolution to the last, through every cut and join of the steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.models import create_model, fold
from tests.models.zoo import VARIANTS, example, variant


def convolutions_off_layout(model: nn.Module, x: Tensor) -> list[str]:
    found = []

    def look(name: str) -> Any:
        def hook(_module: nn.Module, inputs: tuple[Tensor]) -> None:
            if not inputs[0].is_contiguous(memory_format=torch.channels_last):
                found.append(name)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(look(name))
    model(x)
    return found


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("key", [key for key in VARIANTS if "resnet" in key])
def test_every_convolution_gets_a_channels_last_map(key: str, training: bool) -> None:
    model = variant(key).train(training)
    x = example(model, height=80)
    assert x.is_contiguous()
    assert convolutions_off_layout(model, x) == []


@pytest.mark.parametrize("key", VARIANTS)
def test_weights_are_stored_contiguous(key: str) -> None:
    model = variant(key).eval()
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    assert all(parameter.is_contiguous() for parameter in fold(model).parameters())


@pytest.mark.parametrize("key", [key for key in VARIANTS if "resnet" in key])
def test_no_1x1_convolution_has_a_stride(key: str) -> None:
    """PyTorch's strided 1×1 convolution corrupts memory on some CPUs."""
    for options in ({}, {"bottleneck": True}):
        for module in variant(key, **options).modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
                assert module.stride == (1, 1)


def test_a_folded_model_keeps_the_layout_of_maps() -> None:
    folded = fold(create_model("test_steps_resnet").eval())
    assert convolutions_off_layout(folded, example(folded, height=80)) == []
