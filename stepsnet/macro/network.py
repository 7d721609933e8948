"""StepsNet: n residual networks of growing width, joined along channels (arXiv 2511.14329, Eq. 5), and its reverse (Eq. 6).

Legend: x = [x_1 … x_n] is the input split along channels into slices of d_1 … d_n; C_i = d_1 + … + d_i is the width of step i;
F_i is the i-th step, any module from C_i channels to C_i channels; y_i is what it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.macro.joins import Join, resolve_join
from stepsnet.macro.plan import slices_of
from stepsnet.macro.stack import Stack


class StepsNet(nn.Module):
    """y_1 = F_1(x_1);  y_i = F_i([y_{i-1}, x_i]).

    `steps` are the F_i and `widths` their C_i, growing. `channel_dim` is where the channels are: -1 for tokens, 1 for
    images. `join` is "plain" (Eq. 5), "matched", a module (y, x) → [y, x] that serves at every join, or a function
    (C_{i-1}, d_i, channel_dim) → module. Further arguments of the call go to every step. With a single step this is F_1, bit for bit.
    """

    def __init__(self, steps: Iterable[nn.Module], widths: Sequence[int], channel_dim: int = -1, join: Join = "plain") -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.widths = tuple(widths)
        self.channel_dim = channel_dim
        _check_widths(self.steps, self.widths, "grow from narrow to wide", self.widths)
        self.slices = slices_of(self.widths)
        make_join = resolve_join(join)
        self.joins = nn.ModuleList(make_join(narrow, wide - narrow, channel_dim) for narrow, wide in pairwise(self.widths))

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        y, *fresh = self.split(x)
        y = self.steps[0](y, *context)
        for i, x_i in enumerate(fresh, start=1):
            y = self.steps[i](self.joins[i - 1](y, x_i), *context)
        return y

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """x_1 … x_n, x_1 ready to be worked on, the others as views."""
        _check_input(x, self.widths[-1], self.channel_dim)
        return _cut(x, self.slices, self.channel_dim) if len(self.slices) > 1 else (x,)

    def walk(self, x: Tensor, *context: Any, after: Collection[int] | None = None) -> tuple[Tensor, list[Tensor]]:
        """The output, and the states after the blocks numbered `after`, by default all; a step that is no Stack counts as one block."""
        y, *fresh = self.split(x)
        states: list[Tensor] = []
        count = 0
        for i, step in enumerate(self.steps):
            y = start = self.joins[i - 1](y, fresh[i - 1]) if i else y
            for y in _walk(step, start, *context):
                if after is None or count in after:
                    states.append(self.state(x, y))
                count += 1
        return y, states

    def state(self, x: Tensor, y: Tensor) -> Tensor:
        """[y_i, x_{i+1} … x_n], the full-width state around y, the output of any block of step i: the slices still waiting belong to it."""
        width = y.shape[self.channel_dim]
        return torch.cat((y, x.narrow(self.channel_dim, width, x.shape[self.channel_dim] - width)), self.channel_dim)

    def extra_repr(self) -> str:
        return f"widths={self.widths}, channel_dim={self.channel_dim}"


class ReverseStepsNet(nn.Module):
    """x_{i+1}, y_i = split(F_i(x_i));  y_n = F_n(x_n); the output is [y_1 … y_n] (Eq. 6, Table 10).

    `widths` go wide to narrow. The first channels of F_i's output go on, the others are done.
    """

    def __init__(self, steps: Iterable[nn.Module], widths: Sequence[int], channel_dim: int = -1) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.widths = tuple(widths)
        self.channel_dim = channel_dim
        _check_widths(self.steps, self.widths, "shrink from wide to narrow", self.widths[::-1])

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        _check_input(x, self.widths[0], self.channel_dim)
        done = []
        for i, (width, onward) in enumerate(pairwise(self.widths)):
            x, y = _cut(self.steps[i](x, *context), (onward, width - onward), self.channel_dim)
            done.append(y)
        return torch.cat((*done, self.steps[-1](x, *context)), self.channel_dim)

    def walk(self, x: Tensor, *context: Any, after: Collection[int] | None = None) -> tuple[Tensor, list[Tensor]]:
        """The output, and the states [y_1 … y_{i-1}, x_i] after the blocks numbered `after`, as StepsNet.walk has them."""
        _check_input(x, self.widths[0], self.channel_dim)
        done: list[Tensor] = []
        states: list[Tensor] = []
        count = 0
        for step, (width, onward) in zip(self.steps, pairwise((*self.widths, 0)), strict=True):
            start = x
            for x in _walk(step, start, *context):
                if after is None or count in after:
                    states.append(torch.cat((*done, x), self.channel_dim))
                count += 1
            x, y = _cut(x, (onward, width - onward), self.channel_dim)
            done.append(y)
        return torch.cat(done, self.channel_dim), states

    def extra_repr(self) -> str:
        return f"widths={self.widths}, channel_dim={self.channel_dim}"


def steps_reference(x: Tensor, steps: Sequence[nn.Module], widths: Sequence[int], channel_dim: int = -1) -> Tensor:
    """Eq. 5 word for word, one channel range at a time: slow, obvious, and what the tests compare StepsNet with."""
    y = steps[0](torch.index_select(x, channel_dim, torch.arange(widths[0])))
    for i in range(1, len(steps)):
        x_i = torch.index_select(x, channel_dim, torch.arange(widths[i - 1], widths[i]))
        y = steps[i](torch.cat([y, x_i], dim=channel_dim))
    return y


def reverse_reference(x: Tensor, steps: Sequence[nn.Module], widths: Sequence[int], channel_dim: int = -1) -> Tensor:
    """Eq. 6 word for word."""
    outputs = []
    for i in range(len(steps) - 1):
        z = steps[i](x)
        x = torch.index_select(z, channel_dim, torch.arange(widths[i + 1]))
        outputs.append(torch.index_select(z, channel_dim, torch.arange(widths[i + 1], widths[i])))
    outputs.append(steps[-1](x))
    return torch.cat(outputs, dim=channel_dim)


def _cut(x: Tensor, slices: tuple[int, ...], channel_dim: int) -> tuple[Tensor, ...]:
    """Slices as views, but the first, which a step works on, as a copy: its norm would make one anyway, and it may be changed in place."""
    first, *rest = x.split(slices, channel_dim)
    return first.clone(), *rest


def _walk(step: nn.Module, x: Tensor, *context: Any) -> Iterator[Tensor]:
    return step.walk(x, *context) if isinstance(step, Stack) else iter([step(x, *context)])


def _check_widths(steps: nn.ModuleList, widths: tuple[int, ...], rule: str, growing: tuple[int, ...]) -> None:
    if not widths or len(steps) != len(widths):
        raise UsageError(f"{len(steps)} steps need as many widths, and at least one; got {len(widths)}: {widths}")
    if growing[0] < 1 or any(narrow >= wide for narrow, wide in pairwise(growing)):
        raise UsageError(f"the widths of the steps must be positive and {rule}, got {widths}")


def _check_input(x: Tensor, width: int, channel_dim: int) -> None:
    if not -x.dim() <= channel_dim < x.dim():
        raise UsageError(f"the channels are at dimension {channel_dim}, which an input of shape {tuple(x.shape)} does not have")
    if x.shape[channel_dim] != width:
        found = f"has {x.shape[channel_dim]} at dimension {channel_dim}"
        raise UsageError(f"the network is {width} channels wide, the input of shape {tuple(x.shape)} {found}")
