"""Folding removes all batch norms and does not change the outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepsnet.blocks.designs import RESIDUALS
from stepsnet.errors import UsageError
from stepsnet.models import Model, create_model, fold, save_model
from tests.models.tiny import VARIANTS, example, shake, variant

RESNETS = [key for key in VARIANTS if "resnet" in key]
CASES: list[tuple[str, dict[str, Any]]] = [(key, {}) for key in RESNETS]
CASES += [
    (key, {"residual": design})
    for key in ("test_resnet", "test_steps_resnet")
    for design in RESIDUALS
    if design != "plain"
]
CASES += [("test_steps_resnet", {"bottleneck": True})]


def used(model: Model) -> Model:
    """A model whose running statistics and gains are not those it starts with, in evaluation mode."""
    shake(model)
    for _ in range(2):
        model(3.0 * example(model) + 1.0)
    return model.eval()


def norms_of(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize(
    ("key", "options"), CASES, ids=[" ".join((key, *map(str, options.values()))) for key, options in CASES]
)
@torch.no_grad()
def test_the_outputs_are_the_same_without_batch_norms(key: str, options: dict[str, Any]) -> None:
    model = used(variant(key, **options))
    x = example(model)
    before = model(x)
    folded = fold(model)
    assert norms_of(folded) == []
    torch.testing.assert_close(folded(x), before, rtol=1e-5, atol=1e-5 * float(before.abs().max()))


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet34", "resnet50", "steps_resnet18", "steps_resnet34", "steps_resnet50"]
)
@torch.no_grad()
def test_every_registered_resnet_folds(name: str) -> None:
    model = create_model(name, num_classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.weight.uniform_(0.3, 0.6)
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    model.eval()
    x = torch.randn(1, 3, 64, 64)
    before = model(x)
    folded = fold(model)
    assert norms_of(folded) == []
    torch.testing.assert_close(folded(x), before, rtol=1e-5, atol=1e-5 * float(before.abs().max()))


@torch.no_grad()
def test_folding_does_not_change_the_model() -> None:
    model = used(create_model("test_resnet"))
    x, state = example(model), {key: tensor.clone() for key, tensor in model.state_dict().items()}
    before = model(x)
    fold(model)
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    assert torch.equal(model(x), before)


@torch.no_grad()
def test_a_model_without_batch_norms_is_copied() -> None:
    model = create_model("test_steps_deit").eval()
    x = example(model)
    assert torch.equal(fold(model)(x), model(x))


def test_a_model_in_training_is_refused() -> None:
    with pytest.raises(UsageError, match=r"fold\(\) is for inference.*call model\.eval\(\) first"):
        fold(create_model("test_resnet"))


def test_a_folded_model_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a folded model cannot be saved; save the one it was made from"):
        save_model(fold(create_model("test_resnet").eval()), tmp_path / "model.safetensors")
