"""The shortcut ratio γ (Sec. 3.1): how much of z_0 is left in the state once the residual branches have been added to it.

γ_l = σ(z_0) / σ(z_l), σ over the channels of the full-width state at each position, the ratio averaged over positions and batch. γ = 1:
the shortcut is all there is; γ → 0: it has been drowned. A γ depends on initialisation and training step, so say both beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.analysis.states import undisturbed, watch_blocks


@dataclass(frozen=True)
class ShortcutRatio:
    """`gamma` and `sigma`, the mean σ(z_l), after every block in the order of execution; `sigma_0` is σ(z_0) of the block's stage."""

    gamma: list[float]
    sigma: list[float]
    sigma_0: list[float]

    @property
    def mean(self) -> float:
        """γ averaged over the depth."""
        return sum(self.gamma) / len(self.gamma)


def shortcut_ratio(
    model: nn.Module, *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None
) -> ShortcutRatio:
    """γ of `model` on one batch, `model(*inputs)`.

    Models of this package need nothing more. For any other network `blocks` are its residual blocks (`model.layers`, say) and
    `channel_dim` is where their outputs have the channels, if that is not 1 for maps of four dimensions and else the last.
    The model is left as it was: it runs in evaluation mode, without gradients.
    """
    return measure(model, lambda: model(*inputs), blocks=blocks, channel_dim=channel_dim)


def measure(
    model: nn.Module, forward: Callable[[], Any], *, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None
) -> ShortcutRatio:
    """γ during whatever pass through `model` the call `forward()` makes."""
    found: list[Tensor] = []

    def visit(z_0: Tensor, z: Tensor, dim: int) -> None:
        sigma_0, sigma = _sigma(z_0, dim), _sigma(z, dim)
        alive = sigma > 0  # a position whose channels are all equal, as behind a dead ReLU, has no ratio
        found.append(torch.stack(((sigma_0[alive] / sigma[alive]).mean(), sigma.mean(), sigma_0.mean())))

    with undisturbed(model), watch_blocks(model, visit, blocks, channel_dim):
        forward()
    gamma, sigma, sigma_0 = torch.stack(found, dim=1).tolist()
    return ShortcutRatio(gamma, sigma, sigma_0)


def _sigma(z: Tensor, dim: int) -> Tensor:
    """The deviation over channels at each position, in fp32 at least."""
    return (z if z.dtype == torch.float64 else z.float()).std(dim, correction=0)
