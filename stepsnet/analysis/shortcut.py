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

from stepsnet.analysis.results import Result, wide
from stepsnet.analysis.states import Seen, undisturbed, watch_blocks
from stepsnet.errors import UsageError
from stepsnet.files import finite


@dataclass(frozen=True)
class ShortcutRatio(Result):
    """One number for each block in the order of execution, each the mean over positions and batch.

    In Eq. 2 the normalised state is ẑ_l = (σ_0/σ_l) ẑ_0 + (σ_r/σ_l) r̂_l with r_l = z_l - z_0, the sum of all branches so far (Eq. 1):
    its weights are `gamma` and `residual_weight`. `branch_sigma` and `branch_weight` are σ(z_l - z_{l-1}) and its ratio to σ(z_l): what
    the l-th block alone has added. In a StepsNet z_{l-1} is the state as the block finds it, behind the join.
    """

    gamma: list[float]
    """σ(z_0) / σ(z_l)"""
    sigma: list[float]
    """σ(z_l)"""
    sigma_0: list[float]
    """σ(z_0) of the block's stage"""
    residual_sigma: list[float]
    """σ(z_l - z_0)"""
    residual_weight: list[float]
    """σ(z_l - z_0) / σ(z_l)"""
    branch_sigma: list[float]
    """σ(z_l - z_{l-1})"""
    branch_weight: list[float]
    """σ(z_l - z_{l-1}) / σ(z_l)"""
    cosine: list[float]
    """of the angle between z_l and z_0"""
    block: list[int]
    """the number of the block, from 1"""
    stage: list[int]
    """the stage it belongs to, from 0"""

    @property
    def mean(self) -> float:
        """γ averaged over the depth."""
        return sum(self.gamma) / len(self.gamma)

    @property
    def shortcut_weight(self) -> list[float]:
        """σ_0/σ_l of Eq. 2: γ under its other name."""
        return self.gamma

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "mean": finite(self.mean)}


def shortcut_ratio(
    model: nn.Module, *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None, start: int = 0
) -> ShortcutRatio:
    """γ of `model` on one batch, `model(*inputs)`.

    Models of this package need nothing more, and in most others `find_blocks` finds the residual blocks. Where it does not, `blocks` are
    they (`model.layers`, say) and `channel_dim` is where their outputs have the channels, if that is not 1 for maps of four dimensions
    and else the last. With `start=l` the state after the l-th block serves as z_0 of its stage, and the result has the blocks after it.
    The model is left as it was: it runs in evaluation mode, without gradients.
    """
    return measure(model, lambda: model(*inputs), *inputs, blocks=blocks, channel_dim=channel_dim, start=start)


def measure(
    model: nn.Module, forward: Callable[[], Any], *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None,
    start: int = 0,
) -> ShortcutRatio:
    """γ during whatever pass through `model` the call `forward()` makes; `inputs` help to find the blocks of a foreign model."""
    found: list[Tensor] = []
    places: list[tuple[int, int]] = []
    later: dict[int, Tensor] = {}  # the z_0 of a stage that is not its first state

    def visit(seen: Seen) -> None:
        if seen.number == start:
            later[seen.stage] = seen.after.clone()
        if seen.number > start:
            found.append(_weights(later.get(seen.stage, seen.z_0), seen))
            places.append((seen.number, seen.stage))

    if start < 0:
        raise UsageError(f"start is the number of the block whose state serves as z_0, or 0 for the first input, not {start}")
    with undisturbed(model), watch_blocks(model, visit, *inputs, blocks=blocks, channel_dim=channel_dim):
        forward()
    if not found:
        raise UsageError(f"start={start} leaves no block: the pass went through no more than that")
    gamma, sigma, sigma_0, residual, residual_weight, branch, branch_weight, cosine = torch.stack(found, dim=1).tolist()
    block, stage = [number for number, _ in places], [stage for _, stage in places]
    return ShortcutRatio(gamma, sigma, sigma_0, residual, residual_weight, branch, branch_weight, cosine, block, stage)


def _weights(z_0: Tensor, seen: Seen) -> Tensor:
    """γ, σ_l, σ_0, σ_r, σ_r/σ_l, the same of the block's own branch, and the cosine."""
    dim = seen.dim
    z_0, before, z = wide(z_0), wide(seen.before), wide(seen.after)
    sigma_0, sigma, residual, branch = (deviation(tensor, dim) for tensor in (z_0, z, z - z_0, z - before))
    alive = sigma > 0  # a position whose channels are all equal, as behind a dead ReLU, has no ratio
    ratios = [(tensor[alive] / sigma[alive]).mean() for tensor in (sigma_0, residual, branch)]
    cosine = torch.nn.functional.cosine_similarity(z_0, z, dim=dim)[alive].mean()
    return torch.stack((ratios[0], sigma.mean(), sigma_0.mean(), residual.mean(), ratios[1], branch.mean(), ratios[2], cosine))


def deviation(z: Tensor, dim: int) -> Tensor:
    """σ over channels at each position."""
    return z.std(dim, correction=0)
