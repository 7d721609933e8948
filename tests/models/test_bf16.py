"""Every family in bf16: converted for inference, and under autocast in training."""

from __future__ import annotations

import pytest
import torch

import stepsnet

FAMILIES = ("resnet", "deit", "swin", "swinpp", "transformer")
NAMES = [f"test_{kind}{family}" for family in FAMILIES for kind in ("", "steps_")]
# bf16 keeps 8 bits: each rounding is up to 0.4 % off, and the logits of these shallow members stay within 5 % of their
# largest.
TOLERANCE = 0.05


def image_or_text(model: torch.nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(0, 256, (2, 32)) if "Transformer" in type(model).__name__ else torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize("name", NAMES)
def test_logits_in_bf16_are_near_those_in_fp32(name: str) -> None:
    torch.manual_seed(0)
    model = stepsnet.create_model(name).eval()
    x = image_or_text(model)
    with torch.no_grad():
        exact = model(x)
        rough = model.to(torch.bfloat16)(x if x.dtype is torch.long else x.bfloat16())
    assert rough.dtype is torch.bfloat16
    assert (rough.float() - exact).abs().max() <= TOLERANCE * exact.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_autocast_training_gives_every_weight_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = stepsnet.create_model(name).train()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(image_or_text(model))
    y.float().square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
