"""Weights are stored contiguous, and convolutions keep the memory layout of their input, also through joins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.models import Model, fold
from tests.models.tiny import VARIANTS, example, variant

RESNETS = [key for key in VARIANTS if "resnet" in key]
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def convolutions_off_layout(model: nn.Module, x: Tensor, layout: torch.memory_format) -> list[str]:
    found = []

    def look(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: tuple[Tensor], output: Tensor) -> None:
            if not output.is_contiguous(memory_format=layout):
                found.append(name)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(look(name))
    model(x)
    return found


@pytest.mark.parametrize("state", ["training", "inference", "folded"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", RESNETS)
def test_convolutions_keep_the_layout_of_the_input(key: str, layout: str, state: str) -> None:
    model: Model = variant(key).train(state == "training")
    model = fold(model) if state == "folded" else model
    model.to(memory_format=LAYOUTS[layout])  # type: ignore[call-overload]  # missing in torch's annotations
    x = example(model, height=80).contiguous(memory_format=LAYOUTS[layout])
    assert convolutions_off_layout(model, x, LAYOUTS[layout]) == []


@pytest.mark.parametrize("key", VARIANTS)
def test_weights_are_stored_contiguous(key: str) -> None:
    model = variant(key).eval()
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    assert all(parameter.is_contiguous() for parameter in fold(model).parameters())


@pytest.mark.parametrize("options", [{}, {"bottleneck": True}], ids=["basic", "bottleneck"])
@pytest.mark.parametrize("key", RESNETS)
def test_no_1x1_convolution_has_a_stride(key: str, options: dict[str, bool]) -> None:
    """PyTorch's strided 1×1 convolution corrupts memory on some CPUs: docs/reference/upstream."""
    convolutions = [module for module in variant(key, **options).modules() if isinstance(module, nn.Conv2d)]
    assert all(conv.stride == (1, 1) for conv in convolutions if conv.kernel_size == (1, 1))
