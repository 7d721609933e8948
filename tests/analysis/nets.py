"""Blocks and networks whose states are known by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scale(nn.Module):
    """A block that multiplies its channels."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Shift(nn.Module):
    """A block whose branch does not depend on its input, as Eq. 2 reads a random one: z + noise."""

    def __init__(self, width: int, seed: int = 0) -> None:
        super().__init__()
        self.noise = nn.Parameter(torch.randn(width, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.noise


class Linear(nn.Module):
    """A block z + z A."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.a(x)


class Foreign(nn.Module):
    """Somebody's network: its blocks return tuples and get their state by keyword; in the middle the width changes."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, *, hidden: Tensor) -> tuple[Tensor, None]:
            return self.factor * hidden, None

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = x[..., :4] if number == 2 else x
            x = layer(hidden=x)[0]
        return x


def no_hooks(model: nn.Module) -> bool:
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
