"""One pass of a contender over one batch: what exactly is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import Model, VisionModel

MODES = ("inference", "training")
TIMES_FORWARD = {"inference": 1, "training": 3}
"""A training step costs three forward passes: backward makes two gradients, of inputs and of weights, for every product."""

WHAT_IS_TIMED = {
    "inference": "one forward pass under inference_mode, evaluation mode",
    "training": "forward pass, cross-entropy, backward pass, gradients set to None; no optimiser, no stochastic depth; bf16 by autocast",
}


def random_batch(model: Model, batch: int) -> Tensor:
    """Inputs of the model's own size: noise for pictures, random tokens for text."""
    shape = (batch, *model.input_size)
    if isinstance(model, VisionModel):
        return torch.randn(shape)
    return torch.randint(model.default_cfg["vocab_size"], shape)


def inference_pass(forward: Callable[[Tensor], Any], x: Tensor) -> Callable[[], object]:
    def one_pass() -> object:
        with torch.inference_mode():
            return forward(x)

    return one_pass


def count_classes(model: Model) -> int:
    """What the model chooses among: classes of pictures, or the next token."""
    return model.num_classes if isinstance(model, VisionModel) else int(model.default_cfg["vocab_size"])


def training_pass(module: nn.Module, x: Tensor, classes: int, *, bf16: bool) -> Callable[[], object]:
    """Forward, loss, backward, gradients away."""
    if classes < 2:
        raise UsageError(f"a training step needs at least 2 classes, and this {type(module).__name__} has {classes}")
    targets = torch.randint(classes, x.shape[:1] if x.is_floating_point() else x.shape)

    def one_step() -> object:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = module(x)
            loss = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
        loss.backward()
        module.zero_grad(set_to_none=True)
        return loss.detach()

    return one_step
