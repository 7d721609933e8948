"""StepsNet: n residual networks of growing width, joined along channels (arXiv 2511.14329, Eq. 5). Reverse: Eq. 6.

Legend: the input x = [x_1 … x_n] is split along channels into slices of d_1 … d_n channels. C_i = d_1 + … + d_i is the
width of step i. F_i is step i: any module from C_i channels to C_i channels. y_i is its output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepsnet.errors import UsageError
from stepsnet.macro.joins import Join, resolve_join
from stepsnet.macro.plan import StepPlan, slices_of


class Stack(nn.Module):
    """F_i: blocks of one width, one after the other. A stack without blocks returns its input."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        recompute = self.grad_checkpointing and self.training
        for block in self.blocks:
            x = checkpoint(block, x, *args, use_reentrant=False, **kwargs) if recompute else block(x, *args, **kwargs)
        return x

    def walk(self, x: Tensor, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        """The state after each block."""
        recompute = self.grad_checkpointing and self.training
        for block in self.blocks:
            x = checkpoint(block, x, *args, use_reentrant=False, **kwargs) if recompute else block(x, *args, **kwargs)
            yield x


MakeBlock = Callable[[int, int], nn.Module]
MakeStack = Callable[[Iterable[nn.Module]], nn.Module]


class StepsNet(nn.Module):
    """y_1 = F_1(x_1);  y_i = F_i([y_{i-1}, x_i]).

    `steps` are the F_i and `widths` the growing C_i. `channel_dim` is the dimension of the channels: -1 for tokens, 1
    for images. `join` is "plain" (Eq. 5), "matched_grad", a module (y, x) → [y, x] used at every join, or a function
    (C_{i-1}, d_i, channel_dim) → module. Further arguments of a call, also by keyword, are passed to every step. With a
    single step the network is F_1, bit-exactly.
    """

    def __init__(
        self, steps: Iterable[nn.Module], widths: Sequence[int], channel_dim: int = -1, join: Join = "plain"
    ) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.widths = tuple(widths)
        self.channel_dim = channel_dim
        _check_widths(self.steps, self.widths, "grow from narrow to wide", self.widths)
        self.slices = slices_of(self.widths)
        make_join = resolve_join(join)
        self.joins = nn.ModuleList(
            make_join(narrow, wide - narrow, channel_dim) for narrow, wide in pairwise(self.widths)
        )

    @classmethod
    def from_blocks(
        cls,
        make_block: MakeBlock,
        plan: StepPlan | str,
        *,
        channel_dim: int = -1,
        join: Join = "plain",
        make_stack: MakeStack = Stack,
    ) -> StepsNet:
        """The network of a plan. `make_block(width, index)` makes the blocks, in the order of execution.

        >>> make_block = lambda width, index: nn.TransformerEncoderLayer(width, nhead=4, batch_first=True)
        >>> net = StepsNet.from_blocks(make_block, "64x2, 96x1, 128x1")
        >>> net(torch.zeros(1, 10, 128)).shape
        torch.Size([1, 10, 128])
        """
        plan = StepPlan.parse(plan) if isinstance(plan, str) else plan
        return cls(_make_steps(make_block, make_stack, plan.widths, plan.depths), plan.widths, channel_dim, join)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        y, *fresh = self.split(x)
        y = self.steps[0](y, *args, **kwargs)
        for i, x_i in enumerate(fresh, start=1):
            y = self.steps[i](self.joins[i - 1](y, x_i), *args, **kwargs)
        return y

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """x_1 … x_n. x_1 is a copy, since a step may change it in place; the others are views."""
        _check_input(x, self.widths[-1], self.channel_dim)
        return _cut(x, self.slices, self.channel_dim) if len(self.slices) > 1 else (x,)

    def walk(
        self, x: Tensor, *args: Any, after: Collection[int] | None = None, stop_early: bool = False, **kwargs: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """The output, and the full-width states after blocks `after` (None: all). Other steps count as one block.

        With `stop_early`, the last of these states is the output, and later blocks do not run.
        """
        y, *fresh = self.split(x)
        states: list[Tensor] = []
        number = 0
        for i, step in enumerate(self.steps):
            y = start = self.joins[i - 1](y, fresh[i - 1]) if i else y
            for y in _walk(step, start, *args, **kwargs):
                if after is None or number in after:
                    states.append(self.state(x, y))
                    if stop_early and after is not None and number == max(after):
                        return states[-1], states
                number += 1
        return y, states

    def state(self, x: Tensor, y: Tensor) -> Tensor:
        """[y, x_{i+1} … x_n]: the full-width state, where y is the output of any block of step i."""
        width = y.shape[self.channel_dim]
        return torch.cat((y, x.narrow(self.channel_dim, width, x.shape[self.channel_dim] - width)), self.channel_dim)

    def extra_repr(self) -> str:
        return f"widths={self.widths}, channel_dim={self.channel_dim}"


class ReverseStepsNet(nn.Module):
    """[x_{i+1}, y_i] = F_i(x_i);  y_n = F_n(x_n); the output is [y_1 … y_n] (Eq. 6, Table 10).

    `widths` go from wide to narrow. The first channels of F_i's output go on to the next step; the others are part of
    the output.
    """

    def __init__(self, steps: Iterable[nn.Module], widths: Sequence[int], channel_dim: int = -1) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.widths = tuple(widths)
        self.channel_dim = channel_dim
        _check_widths(self.steps, self.widths, "shrink from wide to narrow", self.widths[::-1])

    @classmethod
    def from_blocks(
        cls, make_block: MakeBlock, plan: StepPlan | str, *, channel_dim: int = -1, make_stack: MakeStack = Stack
    ) -> ReverseStepsNet:
        """As StepsNet.from_blocks: the plan is written from narrow to wide, and executed from its end."""
        plan = StepPlan.parse(plan) if isinstance(plan, str) else plan
        widths, depths = plan.widths[::-1], plan.depths[::-1]
        return cls(_make_steps(make_block, make_stack, widths, depths), widths, channel_dim)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        _check_input(x, self.widths[0], self.channel_dim)
        done = []
        for i, (width, onward) in enumerate(pairwise(self.widths)):
            x, y = _cut(self.steps[i](x, *args, **kwargs), (onward, width - onward), self.channel_dim)
            done.append(y)
        return torch.cat((*done, self.steps[-1](x, *args, **kwargs)), self.channel_dim)

    def walk(
        self, x: Tensor, *args: Any, after: Collection[int] | None = None, stop_early: bool = False, **kwargs: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """The output, and the states [y_1 … y_{i-1}, x_i] after blocks `after`, as in StepsNet.walk."""
        _check_input(x, self.widths[0], self.channel_dim)
        done: list[Tensor] = []
        states: list[Tensor] = []
        number = 0
        for step, (width, onward) in zip(self.steps, pairwise((*self.widths, 0)), strict=True):
            start = x
            for x in _walk(step, start, *args, **kwargs):
                if after is None or number in after:
                    states.append(torch.cat((*done, x), self.channel_dim))
                    if stop_early and after is not None and number == max(after):
                        return states[-1], states
                number += 1
            x, y = _cut(x, (onward, width - onward), self.channel_dim)
            done.append(y)
        return torch.cat(done, self.channel_dim), states

    def extra_repr(self) -> str:
        return f"widths={self.widths}, channel_dim={self.channel_dim}"


def _make_steps(
    make_block: MakeBlock, make_stack: MakeStack, widths: Sequence[int], depths: Sequence[int]
) -> list[nn.Module]:
    index = count()
    return [
        make_stack([make_block(width, next(index)) for _ in range(depth)])
        for width, depth in zip(widths, depths, strict=True)
    ]


def _cut(x: Tensor, slices: tuple[int, ...], channel_dim: int) -> tuple[Tensor, ...]:
    """Slices as views, except the first: the next step may change it in place, so it is a copy."""
    first, *rest = x.split(slices, channel_dim)
    return first.clone(), *rest


def _walk(step: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
    return step.walk(x, *args, **kwargs) if isinstance(step, Stack) else iter([step(x, *args, **kwargs)])


def _check_widths(steps: nn.ModuleList, widths: tuple[int, ...], rule: str, growing: tuple[int, ...]) -> None:
    if not widths or len(steps) != len(widths):
        raise UsageError(f"give one width per step, for at least one step; got {len(steps)} steps and widths {widths}")
    if growing[0] < 1 or any(narrow >= wide for narrow, wide in pairwise(growing)):
        raise UsageError(f"the widths of the steps must be positive and {rule}, got {widths}")


def _check_input(x: Tensor, width: int, channel_dim: int) -> None:
    if not -x.dim() <= channel_dim < x.dim():
        raise UsageError(
            f"the channels are at dimension {channel_dim}, which an input of shape {tuple(x.shape)} does not have"
        )
    if x.shape[channel_dim] != width:
        found = f"has {x.shape[channel_dim]} at dimension {channel_dim}"
        raise UsageError(f"the network is {width} channels wide, the input of shape {tuple(x.shape)} {found}")
