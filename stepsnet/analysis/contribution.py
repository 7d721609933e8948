"""What each step adds to the state (Sec. 5.4), and how much of its width the state uses (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.analysis.states import Result, Seen, numbers, step_label, undisturbed, watch_blocks, wide


@dataclass(frozen=True)
class StepContribution(Result):
    """The update Δ of each step against the final state z of its stage.

    Δ is the full-width state after the step's last block minus that before its first. z is the sum of z_0, all updates
    and what the joins add by scaling (nothing, if they are plain), so in each stage the shares of z_0, the joins and
    the steps add up to 1. A stack of another library's model counts as one step.
    """

    steps: list[str]
    blocks: list[int]
    """blocks of the step"""
    norm: list[float]
    """‖Δ‖ / ‖z‖ at each position, averaged"""
    share: list[float]
    """⟨Δ, z⟩ / ‖z‖², the share of the final state; negative where the update points against it"""
    z_0_norm: list[float]
    """‖z_0‖ / ‖z‖ of the step's stage"""
    z_0_share: list[float]
    """⟨z_0, z⟩ / ‖z‖² of the step's stage"""


@dataclass(frozen=True)
class WidthUse(Result):
    """Effective rank of the state after each block: exp(entropy) of s_i²/Σs², s the singular values of positions ×
    channels.

    Channels are centred first, so this is the number of directions in which positions and samples vary. It cannot
    exceed the width or the number of positions minus one; `limit` is the smaller of these. Use a batch with enough
    positions.
    """

    rank: list[float]
    rank_0: list[float]
    """of z_0 of the block's stage"""
    width: list[int]
    limit: list[int]
    block: list[int]
    stage: list[int]

    @property
    def use(self) -> list[float]:
        """The rank over its limit."""
        return [rank / limit for rank, limit in zip(self.rank, self.limit, strict=True)]


def step_contribution(
    model: nn.Module, *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None
) -> StepContribution:
    """What each step adds on one batch, `model(*inputs)`; `blocks` and `channel_dim` as in `shortcut_ratio`."""
    before: dict[tuple[int, int], Tensor] = {}
    after: dict[tuple[int, int], Tensor] = {}
    counts: dict[tuple[int, int], int] = {}
    starts: dict[int, tuple[Tensor, int]] = {}

    def visit(seen: Seen) -> None:
        key = (seen.stage, seen.step)
        before.setdefault(key, seen.before)
        after[key] = seen.after.clone()
        counts[key] = counts.get(key, 0) + 1
        starts[seen.stage] = (seen.z_0, seen.dim)

    with undisturbed(model), watch_blocks(model, visit, *inputs, blocks=blocks, channel_dim=channel_dim):
        model(*inputs)
    last = {stage: wide(state) for (stage, _), state in after.items()}  # in order: the last step of a stage stays
    updates = [_relative(wide(after[key]) - wide(before[key]), last[key[0]], starts[key[0]][1]) for key in after]
    shortcuts = [_relative(wide(starts[stage][0]), last[stage], starts[stage][1]) for stage, _ in after]
    (norm, share), (z_0_norm, z_0_share) = (torch.stack(rows, dim=1).tolist() for rows in (updates, shortcuts))
    stages = 1 + max(starts)
    labels = [step_label(stage, step, stages) for stage, step in after]
    return StepContribution(labels, list(counts.values()), norm, share, z_0_norm, z_0_share)


def _relative(part: Tensor, z: Tensor, dim: int) -> Tensor:
    """‖part‖/‖z‖ and ⟨part, z⟩/‖z‖², averaged over the positions where z is not zero."""
    length = z.norm(dim=dim)
    alive = length > 0
    ratio = part.norm(dim=dim)[alive] / length[alive]
    share = (part * z).sum(dim)[alive] / length[alive].square()
    return torch.stack((ratio.mean(), share.mean()))


def width_use(
    model: nn.Module, *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None
) -> WidthUse:
    """Effective rank over depth on one batch, `model(*inputs)`; `blocks` and `channel_dim` as in `shortcut_ratio`."""
    ranks: list[Tensor] = []
    starts: dict[int, Tensor] = {}
    places: list[tuple[int, int, int, int]] = []

    def visit(seen: Seen) -> None:
        if seen.stage not in starts:
            starts[seen.stage] = effective_rank(seen.z_0, seen.dim)
        ranks.append(effective_rank(seen.after, seen.dim))
        width = seen.after.shape[seen.dim]
        places.append((width, max(1, min(width, seen.after.numel() // width - 1)), seen.number, seen.stage))

    with undisturbed(model), watch_blocks(model, visit, *inputs, blocks=blocks, channel_dim=channel_dim):
        model(*inputs)
    width, limit, block, stage = (list(column) for column in zip(*places, strict=True))
    return WidthUse(numbers(ranks), numbers([starts[number] for number in stage]), width, limit, block, stage)


def effective_rank(z: Tensor, dim: int) -> Tensor:
    """exp of the entropy of the normalised squared singular values; 1 for a state that is equal at all positions."""
    points = z.movedim(dim, -1).reshape(-1, z.shape[dim]).double()
    points = points - points.mean(0)
    tall = points.shape[0] >= points.shape[1]
    gram = points.T @ points if tall else points @ points.T  # equal squares, the smaller matrix
    if not torch.isfinite(gram).all():
        return torch.full((), torch.nan, dtype=torch.float64)
    squares = torch.linalg.eigvalsh(gram).clamp_min(0)
    shares = squares / squares.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return torch.special.entr(shares).sum().exp()
