"""PyTorch's `fully_shard` takes every family as it comes: the same outputs and gradients from two processes."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stepsnet.models import create_model
from tests.models.tiny import TINY, example, shake
from tests.train.synthetic import in_processes


def largest_differences() -> dict[str, float]:
    """By model, between the sharded and the whole model, in outputs and gradients, relative to the largest value."""
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for name in TINY:
        torch.manual_seed(0)
        model = shake(create_model(name)).eval()
        x = example(model)
        expected = values_and_gradients(model, x)
        model.zero_grad()
        for block in model.blocks_in_order():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        pairs = zip(values_and_gradients(model, x), expected, strict=True)
        found[name] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    return found


def values_and_gradients(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    y.square().mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    whole = [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    return [y.detach(), *(gradient for gradient in whole if gradient is not None)]


def test_every_family_can_be_sharded() -> None:
    for found in in_processes(2, largest_differences):
        assert sorted(found) == TINY
        assert max(found.values()) < 1e-4, found
