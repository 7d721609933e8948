"""A block of width w inside a state of width C: it works on the first w channels, the other channels wait.

The state that a host's loop carries from block to block is [y_i, x_{i+1} … x_n], always at full width. A block of step
i reads and replaces y_i. That is Eq. 5 of the paper, and the host's own loop, hooks, cache and heads stay as they are.

The block keeps its class's name, parameters and attributes: its class is replaced by a subclass whose `forward` splits
and joins. torch.fx traces it. TorchScript reads the source of a function and knows no *args, so `scriptable` writes one
with the arguments of the block.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

WIDTH, REST, DIM = "stepsnet_width", "stepsnet_rest", "stepsnet_dim"
"""Attributes of a block that works on a part of the channels: how many it takes, how many wait (for torch.fx, where
shapes are not known), and their dimension."""
BEFORE, AFTER = "stepsnet_before", "stepsnet_after"
"""Module lists of joins, where a block has some."""
SCRIPTED = """
def forward({signature}):
    if hasattr(self, "stepsnet_before"):
        for join in self.stepsnet_before:
            {state} = join({state})
    rest = {state}.shape[self.stepsnet_dim] - self.stepsnet_width
    if rest == 0:
        out = self.stepsnet_forward({arguments})
    else:
        waiting = {state}.narrow(self.stepsnet_dim, self.stepsnet_width, rest)
        whole = {state}
        {state} = {state}.narrow(self.stepsnet_dim, 0, self.stepsnet_width)
        out = _concatenate(self.stepsnet_forward({arguments}), waiting, self.stepsnet_dim, whole)
    if hasattr(self, "stepsnet_after"):
        for join in self.stepsnet_after:
            out = join(out)
    return out
"""
"""`forward` of a block for TorchScript."""


def make_waiting(
    block: nn.Module,
    width: int,
    total: int,
    channel_dim: int,
    before: Sequence[nn.Module] = (),
    after: Sequence[nn.Module] = (),
) -> nn.Module:
    """Let `block`, which takes `width` channels, take `total`: it works on the first ones. Changed in place and
    returned.

    `before` are joins (see `JoinPart`) applied to the state first, `after` those applied to what the block returns.
    """
    plain: Any = type(block)
    block.__class__ = waiting_class(plain)
    setattr(block, WIDTH, width)
    setattr(block, REST, total - width)
    setattr(block, DIM, channel_dim)
    for name, joins in ((BEFORE, before), (AFTER, after)):
        if joins:
            setattr(block, name, nn.ModuleList(joins))
    return block


class JoinPart(nn.Module):
    """Applies a join of macro/joins.py inside a full-width state: [y, x_i, waiting] → [join(y, x_i), waiting]."""

    def __init__(self, join: nn.Module, narrow: int, wide: int, channel_dim: int) -> None:
        super().__init__()
        self.join = join
        self.narrow, self.wide, self.channel_dim = narrow, wide, channel_dim

    def forward(self, state: Tensor) -> Tensor:
        total = state.shape[self.channel_dim]
        y, x, waiting = state.split((self.narrow, self.wide - self.narrow, total - self.wide), self.channel_dim)
        return torch.cat((self.join(y, x), waiting), self.channel_dim)


@functools.cache
def waiting_class(base: Any) -> Any:
    """The subclass of a block's class that leaves the channels after its width alone."""
    first = next(name for name in list(inspect.signature(base.forward).parameters)[1:])

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            state, args = args[0], args[1:]
        else:
            state = kwargs.pop(first)
        if hasattr(self, BEFORE):
            for join in self.stepsnet_before:
                state = join(state)
        dim, width = self.stepsnet_dim, self.stepsnet_width
        rest = self.stepsnet_rest if isinstance(state, torch.fx.Proxy) else state.shape[dim] - width
        if rest == 0:  # the last step
            out = base.forward(self, state, *args, **kwargs)
        else:
            y, waiting = state.narrow(dim, 0, width), state.narrow(dim, width, rest)  # y may be changed in place
            out = _with_waiting(base.forward(self, y, *args, **kwargs), waiting, dim, state)
        if hasattr(self, AFTER):
            for join in self.stepsnet_after:
                out = (join(out[0]), *out[1:]) if isinstance(out, tuple) else join(out)
        return out

    def extra_repr(self: Any) -> str:
        inherited = base.extra_repr(self)
        return f"{inherited}{', ' if inherited else ''}first {self.stepsnet_width} channels"

    vars(forward)["__wrapped__"] = scriptable(base.forward)
    members = {
        "forward": forward,
        "stepsnet_forward": renamed(base.forward, "stepsnet_forward"),
        "extra_repr": extra_repr,
        "__reduce_ex__": lambda self, _protocol: (_restore, (base,), self.__dict__),
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
    }
    return type(base.__name__, (base,), members)


def _with_waiting(out: Any, waiting: Tensor, dim: int, state: Tensor) -> Any:
    """What a block returned, a tensor or a tuple that begins with one, with the waiting channels behind its own."""
    if isinstance(out, tuple):
        return _concatenate(out[0], waiting, dim, state), *out[1:]
    return _concatenate(out, waiting, dim, state)


@torch.fx.wrap
def _concatenate(y: Tensor, waiting: Tensor, dim: int, state: Tensor) -> Tensor:
    """[y, waiting] with dimensions in memory in the order of `state`: on another layout the next layers would round
    differently."""
    if state.is_contiguous():
        return torch.cat((y, waiting), dim)
    strides = [(-stride, axis) for axis, stride in enumerate(state.stride())]
    order = [axis for _, axis in sorted(strides)]
    joined = torch.cat((y.permute(order), waiting.permute(order)), order.index(dim % state.dim()))
    return joined.permute([order.index(i) for i in range(state.dim())])


def scriptable(forward: Any) -> Any:
    """A function of the same arguments as `forward` with source that TorchScript can read. torch.jit takes it because
    it looks through `__wrapped__`."""
    signature = inspect.signature(forward)
    names, typed = list(signature.parameters), []
    for name, parameter in signature.parameters.items():
        text = inspect.formatannotation(parameter.annotation)
        known = parameter.annotation is not inspect.Parameter.empty and "<" not in text  # as in "f.<locals>.Class"
        typed.append(f"{name}: {text}" if known else name)
    source = SCRIPTED.format(signature=", ".join(typed), state=names[1], arguments=", ".join(names[1:]))
    file = f"<stepsnet {forward.__module__}.{forward.__qualname__}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(source, file, "exec"), globals(), scope)  # noqa: S102  SCRIPTED with names of arguments
    vars(scope["forward"])["__signature__"] = signature
    return scope["forward"]


def renamed(function: Any, name: str) -> Any:
    """A copy of a function under another name: TorchScript compiles a method by the name of its function."""
    found = inspect.unwrap(function)
    made = FunctionType(found.__code__, found.__globals__, name, found.__defaults__, found.__closure__)
    made.__annotations__, made.__kwdefaults__ = found.__annotations__, found.__kwdefaults__
    return made


def _restore(base: Any) -> Any:
    """An empty instance for pickle and deepcopy: the subclass itself is not importable, but made again."""
    made = waiting_class(base)
    return made.__new__(made)
