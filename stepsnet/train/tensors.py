"""The tensors that make up a run's state, by name, and tensors of which each process holds a shard (DTensor)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and lasting buffers, the very objects, by the names of the state dict."""
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, sharing its memory; the whole tensor unless it is sharded."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor; every process must ask for it when it is sharded."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(whole: Tensor, pattern: Tensor) -> Tensor:
    """`whole`, which every process holds, on the device of `pattern`, laid out and sharded as it is."""
    whole = whole.to(device=pattern.device)
    if isinstance(pattern, DTensor):
        return distribute_tensor(whole.contiguous(), pattern.device_mesh, pattern.placements, src_data_rank=None)
    if whole.shape != pattern.shape or whole.stride() == pattern.stride():
        return whole
    # Fused optimisers walk through parameter and moments side by side, as they lie in memory.
    return torch.empty_like(pattern, dtype=whole.dtype, requires_grad=False).copy_(whole)


@torch.no_grad()
def fill(target: Tensor, whole: Tensor) -> None:
    """Copy `whole`, which every process holds, into `target`, however that is sharded."""
    local(target).copy_(local(like(whole, target)))
