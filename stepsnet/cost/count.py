"""Costs by running a model where nothing is computed: on the meta device, with PyTorch's own counter watching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from stepsnet.cost.formulas import Cost
from stepsnet.errors import UsageError


@runtime_checkable
class HasClosedForm(Protocol):
    """Models that know their own cost: those of this package."""

    def closed_form(self, input_size: tuple[int, ...] | None = None) -> Cost: ...

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor: ...


def count_params(model: nn.Module) -> int:
    """Every parameter once, shared ones too."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, *inputs: Any) -> int:
    """Multiply-accumulates of one forward pass, attention included; `inputs` may be real tensors, only their shapes matter.

    On the CPU the counter sees nothing inside fused attention; on the meta device attention falls apart into matrix products.
    """
    state = {name: tensor.to("meta") for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    inputs = tuple(value.to("meta") if isinstance(value, Tensor) else value for value in inputs)
    with _evaluating(model), torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional_call(model, state, inputs)
    return counter.get_total_flops() // 2  # it counts two for every multiply-accumulate


def count_cost(model: nn.Module, *inputs: Any, input_size: tuple[int, ...] | None = None) -> Cost:
    """Counted parameters and MACs. Models of this package bring their own input, and their blocks and layers."""
    shape = Cost(blocks=None, layers=None)
    if isinstance(model, HasClosedForm):
        shape = model.closed_form(input_size)
        inputs = inputs or (model.dummy_input(input_size),)
    elif not inputs:
        if input_size is None:
            raise UsageError(f"{type(model).__name__} does not say what it takes; give input_size, the shape of one input")
        inputs = (torch.empty(1, *input_size, device="meta"),)
    return Cost(shape.blocks, shape.layers, count_params(model), count_macs(model, *inputs))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
