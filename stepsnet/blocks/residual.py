"""Residual designs: how a branch is added to its shortcut.

A block gives its branch and the norm in front of it to a residual design, which returns a module x → z. The plain one
is Eq. 1, z = x + R(norm(x)); the others are known remedies for shortcut degradation. `designs.py` lists them by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """A block's channels and their dimension, its number in stage and network, their depth, its drop-path rate."""

    width: int
    channel_dim: int = -1
    position: int = 0
    index: int = 0
    depth: int = 1
    drop_path: float = 0.0


class DropPath(nn.Module):
    """Stochastic depth: in training, drops the branch of random samples and scales the others to keep the mean."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def idle(self) -> bool:
        """Whether the branch is returned unchanged."""
        return self.rate == 0.0 or not self.training

    def forward(self, x: Tensor) -> Tensor:
        if self.idle:
            return x
        keep = 1.0 - self.rate
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


class Residual(nn.Module):
    """z = x + R(norm(x)). A block whose norms are inside its branch, as ResNet's, gives no norm."""

    def __init__(self, norm: nn.Module | None, branch: nn.Module, place: Place) -> None:
        super().__init__()
        self.norm = nn.Identity() if norm is None else norm
        self.branch = branch
        self.drop_path = DropPath(place.drop_path)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return x + self.drop_path(self.branch(self.norm(x), *context))


class LayerScale(Residual):
    """z = x + λ R(norm(x)), λ one learned number per channel that starts small (CaiT, arXiv 2103.17239)."""

    def __init__(self, norm: nn.Module | None, branch: nn.Module, place: Place) -> None:
        super().__init__(norm, branch, place)
        # CaiT's schedule: deeper networks start with smaller values.
        self.start = 0.1 if place.depth <= 18 else 1e-5 if place.depth <= 24 else 1e-6
        self.channel_dim = place.channel_dim
        self.scale = nn.Parameter(torch.empty(place.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.start)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        along_channels = [1] * x.dim()
        along_channels[self.channel_dim] = -1
        return x + self.drop_path(self.scale.view(along_channels) * self.branch(self.norm(x), *context))


class ReZero(Residual):
    """z = x + α R(norm(x)), α one learned number that starts at zero (arXiv 2003.04887, here with the norm kept)."""

    def __init__(self, norm: nn.Module | None, branch: nn.Module, place: Place) -> None:
        super().__init__(norm, branch, place)
        self.scale = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.scale)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return x + self.drop_path(self.scale * self.branch(self.norm(x), *context))


class LayerNormScaling(Residual):
    """z = x + R(norm(x) / √l) in block l = 1, 2 … (arXiv 2502.05795). Without a norm: z = x + R(x) / √l."""

    def __init__(self, norm: nn.Module | None, branch: nn.Module, place: Place) -> None:
        super().__init__(norm, branch, place)
        self.scale, self.has_norm = (place.index + 1) ** -0.5, norm is not None

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        if self.has_norm:
            return x + self.drop_path(self.branch(self.scale * self.norm(x), *context))
        return x + self.drop_path(self.scale * self.branch(x, *context))


class DeepNorm(Residual):
    """z = norm(α x + β R(x)), α = (2 depth)^¼ and β = (8 depth)^-¼ (arXiv 2203.00555, which scales weights by β).

    A block without a norm divides the sum by α instead, which gives the shortcut the same share.
    """

    def __init__(self, norm: nn.Module | None, branch: nn.Module, place: Place) -> None:
        super().__init__(norm, branch, place)
        self.alpha = (2 * place.depth) ** 0.25
        self.beta = (8 * place.depth) ** -0.25
        if norm is None:
            self.alpha, self.beta = 1.0, self.beta / self.alpha

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.norm(self.alpha * x + self.drop_path(self.beta * self.branch(x, *context)))
