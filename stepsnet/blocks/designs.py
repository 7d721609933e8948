"""The residual designs by name, and those that change the stack: hyper-connections and x0-injection.

Hyper-connections (arXiv 2409.19606, the static kind) have S residual streams and learned weights between them.
Their shape is (S, B, …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepsnet.blocks.residual import DeepNorm, LayerNormScaling, LayerScale, Place, Residual, ReZero
from stepsnet.errors import UsageError, nearest
from stepsnet.macro import Stack


class StreamStack(Stack):
    """A stack whose blocks take and return S streams. Its input is copied to all of them, and its output is their mean.

    The paper returns the sum; the mean has the scale that a join or a head expects.
    """

    def __init__(self, blocks: Iterable[nn.Module], streams: int) -> None:
        super().__init__(blocks)
        self.streams = streams

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.merge(super().forward(x.expand(self.streams, *x.shape), *args, **kwargs)) if self.blocks else x

    def walk(self, x: Tensor, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        for streams in super().walk(x.expand(self.streams, *x.shape), *args, **kwargs):
            yield self.merge(streams)

    def merge(self, streams: Tensor) -> Tensor:
        """The state of the network from those of the streams."""
        return streams.mean(dim=0)


class HyperConnection(Residual):
    """h = Σ_s read_s x_s;  z_s = x_s + Σ_t mix_st x_t + write_s R(norm(h)).

    It starts as the plain residual network: mix = 0, write = 1, and each block reads one stream, in turns. The paper's
    matrix between streams is 1 + mix. Ours is the learned difference, so that weight decay pulls towards the plain one.
    """

    def __init__(self, norm: nn.Module | None, branch: nn.Module, place: Place, streams: int) -> None:
        super().__init__(norm, branch, place)
        self.reads = place.index % streams
        self.read = nn.Parameter(torch.empty(streams))
        self.mix = nn.Parameter(torch.empty(streams, streams))
        self.write = nn.Parameter(torch.empty(streams))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.read)
        self.read[self.reads] = 1.0
        nn.init.zeros_(self.mix)
        nn.init.ones_(self.write)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        h = torch.tensordot(self.read, x, dims=1)
        r = self.drop_path(self.branch(self.norm(h), *context))
        return x + torch.tensordot(self.mix, x, dims=1) + self.write.view(-1, *[1] * r.dim()) * r


class InjectedStack(Stack):
    """Block l takes keep_l x + inject_l x_0, where x_0 is the input of the stack (nanochat's x0 lambdas).

    It starts with keep = 1 and inject = 0: the plain residual network.
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__(blocks)
        self.keep = nn.ParameterList(torch.empty(()) for _ in self.blocks)
        self.inject = nn.ParameterList(torch.empty(()) for _ in self.blocks)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for keep, inject in zip(self.keep, self.inject, strict=True):
            nn.init.ones_(keep)
            nn.init.zeros_(inject)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        for state in self.walk(x, *args, **kwargs):
            x = state
        return x

    def walk(self, x: Tensor, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        x_0, recompute = x, self.grad_checkpointing and self.training
        for block, keep, inject in zip(self.blocks, self.keep, self.inject, strict=False):  # a backbone cuts blocks
            x = keep * x + inject * x_0
            x = checkpoint(block, x, *args, use_reentrant=False, **kwargs) if recompute else block(x, *args, **kwargs)
            yield x


# (norm, branch, place) → the module x → z that stands where a plain block has x + R(norm(x)).
ResidualPart: TypeAlias = Callable[[nn.Module | None, nn.Module, Place], nn.Module]


@dataclass(frozen=True)
class ResidualDesign:
    """`part` makes the residual parts of a block; `stack` makes a step of blocks, for designs with several streams."""

    part: ResidualPart = Residual
    stack: Callable[[Iterable[nn.Module]], nn.Module] = Stack


def hyper_connections(streams: int = 2) -> ResidualDesign:
    return ResidualDesign(partial(HyperConnection, streams=streams), partial(StreamStack, streams=streams))


RESIDUALS: dict[str, ResidualDesign] = {
    "plain": ResidualDesign(Residual),
    "layerscale": ResidualDesign(LayerScale),
    "rezero": ResidualDesign(ReZero),
    "deepnorm": ResidualDesign(DeepNorm),
    "hyper": hyper_connections(),
    "layernorm_scaling": ResidualDesign(LayerNormScaling),
    "x0_injection": ResidualDesign(Residual, InjectedStack),
}

ResidualLike: TypeAlias = str | ResidualDesign | ResidualPart


def resolve_residual(residual: ResidualLike) -> ResidualDesign:
    """A design from its name, itself, or its `part` alone."""
    if isinstance(residual, ResidualDesign):
        return residual
    if callable(residual):
        return ResidualDesign(residual)
    name = str(residual)
    if name not in RESIDUALS:
        known = f"{', '.join(RESIDUALS)}, a ResidualDesign, or a function (norm, branch, place) → module"
        raise UsageError(f"there is no residual design '{name}'{nearest(name, RESIDUALS)}; known are {known}")
    return RESIDUALS[name]
