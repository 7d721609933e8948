"""Regional compilation: each block is compiled by itself, and blocks that are alike run the same compiled code.

A model compiled as a whole unrolls its depth, so that compiling takes as long as the network is deep. Blocks of one kind (type, width,
shapes, windows shifted or not) differ in their weights alone, which are inputs of the compiled code: it is made once a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stepsnet.blocks.residual import DropPath
from stepsnet.models.model import Model

AnyModel = TypeVar("AnyModel", bound=Model)

# Training and evaluation, with gradients and without, the first batch size and any other.
VARIANTS_OF_A_KIND = 8


class SharedDropPath(DropPath):
    """Stochastic depth whose rate is a tensor: compiled code takes it as an input, where a number would make each block another kind."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.keep = torch.tensor(1.0 - rate, device="cpu")  # no buffer: it is in no file, and a scalar mixes with every device

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand((x.shape[0],) + (1,) * (x.dim() - 1), device=x.device) < self.keep
        return x * (kept / self.keep).to(x.dtype)


def compile_blocks(model: AnyModel, *, backend: str | Callable[..., Any] = "inductor", dynamic: bool | None = None) -> AnyModel:
    """Compile every residual block of a model, in place; returns the model. Names of weights and files stay as they are.

    The time it takes, at the first call, grows with the number of kinds of blocks and hardly with the depth. `dynamic` is
    `torch.compile`'s: by default a second batch size makes code for all batch sizes, with True the first does already. Maps of
    another height or width are compiled anew.
    """
    from torch._dynamo import config  # takes a second to import

    blocks = model.blocks_in_order()
    if any(module.rate for module in model.modules() if isinstance(module, DropPath)):
        _share_drop_paths(model)
    kinds = len({_kind(block) for block in blocks})
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name in torch 2.6
    setattr(config, limit, max(getattr(config, limit), VARIANTS_OF_A_KIND * kinds))
    for block in blocks:
        block.compile(backend=backend, dynamic=dynamic)
        if block._compiled_call_impl is not None:
            block._compiled_call_impl = _only_batches_vary(block._compiled_call_impl)
    return model


def _only_batches_vary(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The stages of a network have maps of different sizes. The compiler would take that for one size that varies, and then work out
    the windows of a Swin in symbols, which takes many minutes."""

    def call(x: Tensor, *context: Any) -> Tensor:
        if x.dim() == 4 and not torch.compiler.is_compiling():
            torch._dynamo.mark_static(x, [1, 2, 3])
        return compiled(x, *context)

    return call


def _share_drop_paths(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DropPath) and not isinstance(child, SharedDropPath):
                setattr(module, name, SharedDropPath(child.rate).train(child.training))


def _kind(block: nn.Module) -> tuple[object, ...]:
    """What blocks that run the same code have in common: their parts by type, windows shifted or not, and the shapes of their weights."""
    parts = tuple((type(module), getattr(module, "shift", None)) for module in block.modules())
    return (*parts, *(tuple(parameter.shape) for parameter in block.parameters()))
