"""New blocks that change nothing at first: which parameters to zero, found by trying, not by name.

A residual block is x + branch(x), once or several times. Walking its layers from the last one backwards, a layer whose
output still reaches the block's output ends a branch: it is zeroed, and the layers before it no longer matter. When
nothing is left but x, the layers found are the ends of all branches: output projections, norms after a branch (sandwich
norms), LayerScale. A block that normalises the sum (post-norm) never comes to that, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.surgery.hosts import evaluating, first_line

SCALES = re.compile(r"gamma|lambda|layer_?scale|(^|_)ls\d?$|(^|\.)scale$")
"""Parameters a block itself multiplies its branches with."""


def make_identity(
    block: nn.Module,
    x: Tensor,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    channel_dim: int = -1,
) -> list[str]:
    """Zero the ends of a block's branches so that it returns `x` exactly. Returns the names of the parameters that were
    zeroed.

    The other parameters keep their initialisation, so that those zeroed receive a gradient.
    """

    def run() -> Tensor:
        out = block(x, *args, **(kwargs or {}))
        return out[0] if isinstance(out, tuple) else out

    with evaluating(block):
        try:
            run()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            what = f"a {type(block).__name__} of width {x.shape[channel_dim]} does not run in this model"
            why = "something outside the blocks depends on their width or heads"
            raise UsageError(f"{what}: {why} ({first_line(error)})") from error
        zeroed = _zero_scales(block, run, x)
        if zeroed is None:
            zeroed = [name for layer in _ends(block, run, x) for name in _zero(block, layer, run)]
        if not torch.equal(run(), x):
            raise UsageError(
                f"a {type(block).__name__} cannot be made the identity by zeroing the ends of its branches"
            )
    return zeroed


def _zero_scales(block: nn.Module, run: Callable[[], Tensor], x: Tensor) -> list[str] | None:
    """LayerScale held by the block itself, as in ConvNeXt and BEiT, if zeroing it is enough."""
    own = {name: parameter for name, parameter in block.named_parameters(recurse=False) if SCALES.search(name)}
    if not own:
        return None
    before = {name: parameter.clone() for name, parameter in own.items()}
    for parameter in own.values():
        parameter.zero_()
    if torch.equal(run(), x):
        return list(own)
    for name, parameter in own.items():
        parameter.copy_(before[name])
    return None


def _ends(block: nn.Module, run: Callable[[], Tensor], x: Tensor) -> list[nn.Module]:
    """The layers that end the branches of a block, last first."""
    ends: list[nn.Module] = []
    now = run()
    for layer in reversed(_executed(block, run)):
        with _silenced([*ends, layer]):
            without = run()
        if not torch.equal(without, now):
            ends.append(layer)
            now = without
        if torch.equal(now, x):
            return ends
    why = "it normalises the sum of shortcut and branch (post-norm), or changes the shortcut in another way"
    raise UsageError(f"a {type(block).__name__} cannot start as the identity: {why}")


def _executed(block: nn.Module, run: Callable[[], Tensor]) -> list[nn.Module]:
    """Layers with parameters in the order in which they finish; of modules inside one another, the innermost that are
    called."""
    order: list[nn.Module] = []
    hooks = [
        module.register_forward_hook(lambda layer, _args, _out: order.append(layer))
        for module in block.modules()
        if module is not block and any(True for _ in module.parameters())
    ]
    run()
    for hook in hooks:
        hook.remove()
    called = set(order)
    return [
        layer
        for layer in dict.fromkeys(order)
        if not any(inner in called for inner in layer.modules() if inner is not layer)
    ]


@contextmanager
def _silenced(layers: Sequence[nn.Module]) -> Iterator[None]:
    """These layers return zeros."""

    def zeros(_layer: nn.Module, _args: Any, out: Any) -> Any:
        if isinstance(out, tuple):
            return torch.zeros_like(out[0]), *out[1:]
        return torch.zeros_like(out)

    hooks = [layer.register_forward_hook(zeros) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _zero(block: nn.Module, layer: nn.Module, run: Callable[[], Tensor]) -> list[str]:
    """Zero as few parameters of a layer, from its last, as make it return zeros: of an MLP in one piece, the second
    matrix only."""
    names = {parameter: name for name, parameter in block.named_parameters()}
    found: list[bool] = []

    def look(_layer: nn.Module, _args: Any, out: Any) -> None:
        found.append(not (out[0] if isinstance(out, tuple) else out).any())

    hook = layer.register_forward_hook(look)
    zeroed: list[str] = []
    try:
        for parameter in reversed(list(layer.parameters())):
            zeroed.append(names[parameter])
            for value in (0.0, -1.0):  # a norm that multiplies with 1 + weight, as Gemma's, is silent at -1
                parameter.fill_(value)
                run()
                if found[-1]:
                    return zeroed
            parameter.zero_()
    finally:
        hook.remove()
    raise UsageError(
        f"{type(layer).__name__} at the end of a branch of {type(block).__name__} cannot be zero-initialised"
    )
