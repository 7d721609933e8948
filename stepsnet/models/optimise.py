"""The same model, faster: blocks compiled one by one, and batch norms folded into convolutions for inference."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from stepsnet.blocks.residual import DropPath
from stepsnet.errors import UsageError, nearest
from stepsnet.models.model import Model, kind_of

AnyModel = TypeVar("AnyModel", bound=Model)
AnyModule = TypeVar("AnyModule", bound=nn.Module)

# Training and evaluation, with gradients and without, the first batch size and any other.
VARIANTS_OF_A_KIND = 8


def compile_blocks(
    model: AnyModel, *, backend: str | Callable[..., Any] = "inductor", dynamic: bool | None = None
) -> AnyModel:
    """Compile every residual block of a model in place, and return the model. State-dict keys do not change.

    Blocks of one kind (types, widths, shifted windows or not) share compiled code. So the compile time, spent in the
    first call, grows with the number of kinds and hardly with the depth, while torch.compile of the whole model unrolls
    its depth. `dynamic` is that of `torch.compile`: by default, the second batch size compiles code for all sizes; with
    True, the first does. Maps of another height or width are compiled again.
    """
    from torch._dynamo import config, list_backends  # takes a second to import

    known = list_backends(None)
    if isinstance(backend, str) and backend not in known:
        raise UsageError(f"There is no backend {backend!r} of torch.compile{nearest(backend, known)}; "
                         f"known are {', '.join(known)}.")
    blocks = model.blocks_in_order()
    if any(module.rate for module in model.modules() if isinstance(module, DropPath)):
        _share_drop_paths(model)
    kinds = len({(kind_of(block), *(getattr(module, "shift", None) for module in block.modules())) for block in blocks})
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name in torch 2.6
    setattr(config, limit, max(getattr(config, limit), VARIANTS_OF_A_KIND * kinds))
    for block in blocks:
        block.compile(backend=backend, dynamic=dynamic)
        if block._compiled_call_impl is not None:
            block._compiled_call_impl = _only_batches_vary(block._compiled_call_impl)
    return model


class SharedDropPath(DropPath):
    """Stochastic depth with a tensor as rate, an input of compiled code. A number would compile every block anew."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.keep = torch.tensor(
            1.0 - rate, device="cpu"
        )  # no buffer: not in the state dict, and a CPU scalar works with any device

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand((x.shape[0],) + (1,) * (x.dim() - 1), device=x.device) < self.keep
        return x * (kept / self.keep).to(x.dtype)


def _share_drop_paths(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DropPath) and not isinstance(child, SharedDropPath):
                setattr(module, name, SharedDropPath(child.rate).train(child.training))


def _only_batches_vary(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make height, width and channels of maps static.

    They differ between stages. The compiler would make them symbolic, which takes many minutes for the windows of Swin.
    """

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dim() == 4 and not torch.compiler.is_compiling():
            torch._dynamo.mark_static(x, [1, 2, 3])
        return compiled(x, *args, **kwargs)

    return call


def fold(model: AnyModule) -> AnyModule:
    """A copy of a model for inference, with every batch norm `bn…` folded into its convolution `conv…` (`bn2`:
    `conv2`).

    γ (w∗x − μ)/σ + β = (γ/σ w)∗x + (β − γμ/σ): the same outputs up to rounding, with fewer operations. A model without
    batch norms is copied as it is. A folded model can be exported and compiled. It cannot be trained with batch norms,
    and its weights fit no unfolded model. Pairs are found by name, so a network of your own must run `conv2` right
    before `bn2`.
    """
    if model.training:
        raise UsageError("fold() is for inference, but the model is in training mode: call model.eval() first")
    folded = deepcopy(model)
    for module in list(folded.modules()):
        for name, norm in list(module.named_children()):
            conv = getattr(module, name.replace("bn", "conv"), None)
            if isinstance(norm, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d):
                with torch.no_grad():
                    setattr(module, name.replace("bn", "conv"), fuse_conv_bn_eval(conv, norm))
                setattr(module, name, nn.Identity())
    if isinstance(folded, Model):
        folded.default_cfg = {**folded.default_cfg, "folded": True}  # save_model refuses it, since it cannot be rebuilt
    return folded
