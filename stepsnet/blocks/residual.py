"""How a branch joins its shortcut, the one part of a block that the fight against shortcut degradation is about.

A block hands its norm and its branch to a residual design and gets back a module x → z. The plain design is Eq. 1 with
the norm in front, z = x + R(norm(x)); the others are the remedies people try before they change the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """Where a block stands: its width, its number in its stage and in the whole network, the network's depth, its drop-path rate."""

    width: int
    position: int = 0
    index: int = 0
    depth: int = 1
    drop_path: float = 0.0


class DropPath(nn.Module):
    """Stochastic depth: whole branches of single samples vanish, the others grow so that the mean stays."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        keep = 1.0 - self.rate
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


class Residual(nn.Module):
    """z = x + R(norm(x))."""

    def __init__(self, norm: nn.Module, branch: nn.Module, place: Place) -> None:
        super().__init__()
        self.norm = norm
        self.branch = branch
        self.drop_path = DropPath(place.drop_path) if place.drop_path else nn.Identity()

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return x + self.drop_path(self.branch(self.norm(x), *context))


class LayerScale(Residual):
    """z = x + λ R(norm(x)), λ one learned number a channel that starts small (CaiT, arXiv 2103.17239)."""

    def __init__(self, norm: nn.Module, branch: nn.Module, place: Place) -> None:
        super().__init__(norm, branch, place)
        # CaiT's schedule: the deeper the network, the quieter the start.
        self.start = 0.1 if place.depth <= 18 else 1e-5 if place.depth <= 24 else 1e-6
        self.scale = nn.Parameter(torch.empty(place.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.start)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return x + self.drop_path(self.scale * self.branch(self.norm(x), *context))


class ReZero(Residual):
    """z = x + α R(norm(x)), α one learned number that starts at zero (arXiv 2003.04887; the norm is kept, as its pre-norm users do)."""

    def __init__(self, norm: nn.Module, branch: nn.Module, place: Place) -> None:
        super().__init__(norm, branch, place)
        self.scale = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.scale)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return x + self.drop_path(self.scale * self.branch(self.norm(x), *context))


class DeepNorm(Residual):
    """z = norm(α x + R(x)) with α = (2 depth)^¼ (arXiv 2203.00555). The β of its initialisation scales the branch's output, (8 depth)^-¼."""

    def __init__(self, norm: nn.Module, branch: nn.Module, place: Place) -> None:
        super().__init__(norm, branch, place)
        self.alpha = (2 * place.depth) ** 0.25
        self.beta = (8 * place.depth) ** -0.25

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.norm(self.alpha * x + self.drop_path(self.beta * self.branch(x, *context)))
