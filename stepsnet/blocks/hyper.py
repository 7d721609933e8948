"""Residual designs that change the stack: hyper-connections (arXiv 2409.19606, the static kind) and x0-injection.

Hyper-connections have S residual streams and learned weights between them. Their shape is (S, B, …).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepsnet.blocks.residual import Place, Residual
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

    It starts with mix = 0, write = 1 and one stream read by each block, the streams taking turns: the plain residual network. The paper's
    matrix between streams is 1 + mix; ours is what it has learned beyond that, so that weight decay draws towards the plain network.
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
        for block, keep, inject in zip(self.blocks, self.keep, self.inject, strict=True):
            x = keep * x + inject * x_0
            x = checkpoint(block, x, *args, use_reentrant=False, **kwargs) if recompute else block(x, *args, **kwargs)
            yield x
