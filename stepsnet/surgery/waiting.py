"""A block of width w inside a state of width C: it works on the first w channels, the other channels wait.

The state that a host's loop carries from block to block is [y_i, x_{i+1} … x_n], always at full width. A block of step
i reads and replaces y_i. That is Eq. 5 of the paper, and the host's own loop, hooks, cache and heads stay as they are.

The block keeps its class's name, parameters and attributes: its class is replaced by a subclass whose `forward` splits
and joins.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, DIM, BEFORE, AFTER = "stepsnet_width", "stepsnet_dim", "stepsnet_before", "stepsnet_after"
"""Attributes of a block that works on a part of the channels.

The last two are module lists, present only with joins.
"""


def make_waiting(
    block: nn.Module, width: int, channel_dim: int, before: Sequence[nn.Module] = (), after: Sequence[nn.Module] = ()
) -> nn.Module:
    """Let `block`, which takes `width` channels, take any number: it works on the first ones. Changed in place and
    returned.

    `before` are joins (see `JoinPart`) applied to the state first, `after` those applied to what the block returns.
    """
    plain: Any = type(block)
    block.__class__ = waiting_class(plain)
    setattr(block, WIDTH, width)
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
        joined: Tensor = self.join(y, x)
        return torch.cat((joined, waiting), self.channel_dim) if total > self.wide else joined


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
        if state.shape[dim] == width:  # the last step
            out = base.forward(self, state, *args, **kwargs)
        else:
            y, waiting = state.split((width, state.shape[dim] - width), dim)
            out = _with_waiting(base.forward(self, y, *args, **kwargs), waiting, dim, state)
        if hasattr(self, AFTER):
            for join in self.stepsnet_after:
                out = (join(out[0]), *out[1:]) if isinstance(out, tuple) else join(out)
        return out

    def extra_repr(self: Any) -> str:
        inherited = base.extra_repr(self)
        return f"{inherited}{', ' if inherited else ''}first {self.stepsnet_width} channels"

    members = {
        "forward": forward,
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


def _concatenate(y: Tensor, waiting: Tensor, dim: int, state: Tensor) -> Tensor:
    """[y, waiting] with dimensions in memory in the order of `state`: on another layout the next layers would round
    differently."""
    if state.is_contiguous():
        return torch.cat((y, waiting), dim)
    order = sorted(range(state.dim()), key=state.stride, reverse=True)
    joined = torch.cat((y.permute(order), waiting.permute(order)), order.index(dim % state.dim()))
    return joined.permute([order.index(i) for i in range(state.dim())])


def _restore(base: Any) -> Any:
    """An empty instance for pickle and deepcopy: the subclass itself is not importable, but made again."""
    made = waiting_class(base)
    return made.__new__(made)
