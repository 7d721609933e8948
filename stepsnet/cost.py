"""The cost of a network: parameters, and multiply-accumulates (MACs) of one forward pass, counted on the meta device.

"FLOPs" in the paper are MACs of matrix products and convolutions. Layers are counted as in Table 1: every convolution
or linear layer on the main path is one, and attention is one. A Transformer block has 5 (QKV, attention, projection,
two in the MLP), a basic block 2, a bottleneck 3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """The cost of a network for one input. Blocks and layers are None for a model of another library."""

    blocks: int | None
    layers: int | None
    params: int
    macs: int


def count_params(model: nn.Module) -> int:
    """Number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, *inputs: Any, kinds: Mapping[nn.Module, Hashable] | None = None) -> int:
    """Multiply-accumulates of one forward pass, attention included. Of `inputs` only the shapes matter.

    `kinds` saves time in deep networks: of all its modules of one kind with inputs of one shape, only the first is run,
    and the others count as much. They must return the shape they take.
    """
    # On the meta device attention consists of matrix products. On the CPU it is one fused kernel, which the counter
    # does not see.
    state = {name: tensor.to("meta") for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    inputs = tuple(value.to("meta") if isinstance(value, Tensor) else value for value in inputs)
    counter = FlopCounterMode(display=False)
    with _evaluating(model), torch.no_grad(), counter, _one_of_each_kind(kinds or {}, counter) as skipped:
        functional_call(model, state, inputs)
    return (counter.get_total_flops() + sum(skipped)) // 2  # the counter counts two for every multiply-accumulate


@contextmanager
def _one_of_each_kind(kinds: Mapping[nn.Module, Hashable], counter: FlopCounterMode) -> Iterator[list[int]]:
    """Modules whose cost is known return an empty tensor instead of running; yields the FLOPs that this leaves out."""
    skipped: list[int] = []
    known: dict[Hashable, int] = {}

    def forward_of(module: nn.Module, kind: Hashable) -> Callable[..., Tensor]:
        run = module.forward

        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            key = (kind, x.shape)
            if key in known:
                skipped.append(known[key])
                return torch.empty_like(x)
            before = counter.get_total_flops()
            y: Tensor = run(x, *args, **kwargs)
            known[key] = counter.get_total_flops() - before
            return y

        return forward

    for module, kind in kinds.items():
        vars(module)["forward"] = forward_of(module, kind)
    try:
        yield skipped
    finally:
        for module in kinds:
            del vars(module)["forward"]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without compiled code; afterwards every module is in the mode it was in."""
    modules = [(module, module.training) for module in model.modules()]
    compiled = any(module._compiled_call_impl is not None for module, _ in modules)
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for module, training in modules:
            module.training = training
