"""Random networks for property tests (any widths, rank, channel dimension), and slow versions of Eq. 5 and 6."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn


class Mixing(nn.Module):
    """A residual block that mixes all channels, wherever they are: x + tanh(W x)."""

    def __init__(self, width: int, channel_dim: int) -> None:
        super().__init__()
        self.channel_dim = channel_dim
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x.movedim(self.channel_dim, -1)).tanh().movedim(-1, self.channel_dim)


def steps_reference(x: Tensor, steps: Sequence[nn.Module], widths: Sequence[int], channel_dim: int = -1) -> Tensor:
    """Eq. 5 literally, one channel range at a time."""
    y = steps[0](torch.index_select(x, channel_dim, torch.arange(widths[0])))
    for i in range(1, len(steps)):
        x_i = torch.index_select(x, channel_dim, torch.arange(widths[i - 1], widths[i]))
        y = steps[i](torch.cat([y, x_i], dim=channel_dim))
    return y


def reverse_reference(x: Tensor, steps: Sequence[nn.Module], widths: Sequence[int], channel_dim: int = -1) -> Tensor:
    """Eq. 6 literally."""
    outputs = []
    for i in range(len(steps) - 1):
        z = steps[i](x)
        x = torch.index_select(z, channel_dim, torch.arange(widths[i + 1]))
        outputs.append(torch.index_select(z, channel_dim, torch.arange(widths[i + 1], widths[i])))
    outputs.append(steps[-1](x))
    return torch.cat(outputs, dim=channel_dim)


@dataclass(frozen=True)
class Case:
    """Widths from narrow to wide, dimension of the channels (also negative), shape of the input, and a seed."""

    widths: tuple[int, ...]
    channel_dim: int
    shape: tuple[int, ...]
    seed: int

    def steps(self, reverse: bool = False) -> list[nn.Module]:
        torch.manual_seed(self.seed)
        widths = self.widths[::-1] if reverse else self.widths
        return [Mixing(width, self.channel_dim).double() for width in widths]

    def input(self) -> Tensor:
        torch.manual_seed(self.seed + 1)
        return torch.randn(self.shape, dtype=torch.float64, requires_grad=True)


@st.composite
def cases(draw: st.DrawFn, min_steps: int = 1) -> Case:
    widths = sorted(draw(st.sets(st.integers(1, 12), min_size=min_steps, max_size=4)))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    place = draw(st.integers(0, len(shape) - 1))
    shape[place] = widths[-1]
    channel_dim = draw(st.sampled_from([place, place - len(shape)]))
    return Case(tuple(widths), channel_dim, tuple(shape), draw(st.integers(0, 2**16)))


@contextmanager
def outputs_of(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """What the modules return while the context lasts, in the order of execution, seen from outside."""
    seen: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _module, _inputs, output: seen.append(output)) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
