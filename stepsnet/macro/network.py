"""StepsNet: n residual networks of growing width, joined along channels (arXiv 2511.14329, Eq. 5), and its reverse (Eq. 6).

Legend: x = [x_1 … x_n] is the input split along channels into slices of d_1 … d_n; C_i = d_1 + … + d_i is the width of step i;
F_i is the i-th step, any module from C_i channels to C_i channels; y_i is what it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.macro.joins import make_join
from stepsnet.macro.plan import slices_of


class StepsNet(nn.Module):
    """y_1 = F_1(x_1);  y_i = F_i([y_{i-1}, x_i]).

    `steps` are the F_i and `widths` their C_i, growing. `channel_dim` is where the channels are: -1 for tokens, 1 for
    images. `join` is "plain" (Eq. 5), "matched", one module for every join, or one per join: a sequence of n - 1.
    Further arguments of the call go to every step. With a single step this is F_1, bit for bit.
    """

    def __init__(
        self,
        steps: Iterable[nn.Module],
        widths: Sequence[int],
        channel_dim: int = -1,
        join: str | nn.Module | Sequence[str | nn.Module] = "plain",
    ) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.widths = tuple(widths)
        self.channel_dim = channel_dim
        _check_widths(self.steps, self.widths)
        self.slices = slices_of(self.widths)
        joins = [join] * (len(self.steps) - 1) if isinstance(join, (str, nn.Module)) else list(join)
        if len(joins) != len(self.steps) - 1:
            raise UsageError(f"{len(self.steps)} steps have {len(self.steps) - 1} joins, got {len(joins)}")
        self.joins = nn.ModuleList(make_join(j, channel_dim) for j in joins)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        _check_input(x, self.widths[-1], self.channel_dim)
        y, *fresh = x.split(self.slices, self.channel_dim)
        y = self.steps[0](y, *context)
        for step, join, x_i in zip(self.steps[1:], self.joins, fresh, strict=True):
            y = step(join(y, x_i), *context)
        return y

    def state(self, x: Tensor, y: Tensor) -> Tensor:
        """The full-width state [y_i, x_{i+1} … x_n] around y, the output of any block of step i; the slices still waiting belong to it."""
        width = y.shape[self.channel_dim]
        return torch.cat((y, x.narrow(self.channel_dim, width, x.shape[self.channel_dim] - width)), self.channel_dim)

    def walk(self, x: Tensor, *context: Any) -> Iterator[tuple[int | None, Tensor]]:
        """Forward block by block: (0, y), (1, y) … after each block, then (None, output). The steps must have `blocks`, as a Stack has."""
        y, *fresh = x.split(self.slices, self.channel_dim)
        count = 0
        for index, step in enumerate(self.steps):
            y = self.joins[index - 1](y, fresh[index - 1]) if index else y
            for block in cast(Any, step).blocks:
                y = block(y, *context)
                yield count, y
                count += 1
        yield None, y

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
        _check_widths(self.steps, self.widths[::-1])

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        _check_input(x, self.widths[0], self.channel_dim)
        done = []
        for step, width, onward in zip(self.steps, self.widths, self.widths[1:], strict=False):
            x, y = step(x, *context).split((onward, width - onward), self.channel_dim)
            done.append(y)
        return torch.cat((*done, self.steps[-1](x, *context)), self.channel_dim)

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


def _check_widths(steps: nn.ModuleList, widths: tuple[int, ...]) -> None:
    if not widths or len(steps) != len(widths):
        raise UsageError(f"{len(steps)} steps need as many widths, got {len(widths)}: {widths}")
    if widths[0] < 1 or any(a >= b for a, b in zip(widths, widths[1:], strict=False)):
        raise UsageError(f"step widths must be positive and grow strictly from narrow to wide, got {widths}")


def _check_input(x: Tensor, width: int, channel_dim: int) -> None:
    if not -x.dim() <= channel_dim < x.dim():
        raise UsageError(f"the channels are at dimension {channel_dim}, which an input of shape {tuple(x.shape)} does not have")
    if x.shape[channel_dim] != width:
        raise UsageError(f"the network is {width} channels wide, the input of shape {tuple(x.shape)} has {x.shape[channel_dim]} at dimension {channel_dim}")
