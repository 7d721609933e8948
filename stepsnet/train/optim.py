"""Optimisers and what each parameter gets from them: weight decay or none, and its layer's share of the learning rate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from stepsnet.train.config import OptimConfig


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    undecayed: Collection[str] = (),
    layer_decay: float = 1.0,
    layers: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """One group for each pair of weight decay and learning-rate share ("lr_share") that occurs.

    Vectors (biases, norms, scales) and the parameters named by `undecayed` are not decayed. With `layers` (0 the stem, the
    largest number the head) a parameter k layers below the head learns at `layer_decay` to the power of k.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    last = max(layers.values()) if layers else 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = 0.0 if parameter.ndim <= 1 or name in undecayed or name.endswith(".bias") else weight_decay
        share = layer_decay ** (last - layers[name]) if layers else 1.0
        groups.setdefault((decay, share), []).append(parameter)
    return [{"params": members, "weight_decay": decay, "lr_share": share} for (decay, share), members in groups.items()]


def make_optimizer(config: OptimConfig, groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
    """AdamW or SGD, in the implementation that updates all tensors of a group in one call (torch's fused SGD knows no shards)."""
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=config.betas, eps=config.eps, fused=True)
    return torch.optim.SGD(groups, lr=lr, momentum=config.momentum, nesterov=config.nesterov, foreach=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group its share of `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_share"]
