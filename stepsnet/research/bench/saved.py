"""Bytes that a forward pass keeps for the backward pass, counted exactly by watching what autograd saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def saved_bytes(model: nn.Module, *inputs: Any, forward: Callable[..., object] | None = None) -> int:
    """Bytes of the storages that autograd saves in one forward pass, each once, whole even where only a view of it is saved.

    The model runs in the mode it is in. What would be in memory anyway is not counted: parameters, buffers and the inputs themselves.
    `forward` is what is called with the inputs (default: the model), for a pass with a loss or under autocast.
    """
    there = {_identity(tensor) for tensor in (*model.parameters(), *model.buffers(), *(x for x in inputs if isinstance(x, Tensor)))}
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive until counted, so that no identity is given away twice

    def pack(tensor: Tensor) -> Tensor:
        storages.setdefault(_identity(tensor), tensor.untyped_storage())
        return tensor.detach()

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = (forward or model)(*inputs)
    count = sum(storage.nbytes() for identity, storage in storages.items() if identity not in there)
    del output
    return count


def _identity(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
