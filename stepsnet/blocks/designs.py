"""The residual designs by name, and what a design consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import nn

from stepsnet.blocks.hyper import HyperConnection, InjectedStack, StreamStack
from stepsnet.blocks.residual import DeepNorm, LayerNormScaling, LayerScale, Place, Residual, ReZero
from stepsnet.errors import UsageError, nearest
from stepsnet.macro import Stack

# (norm, branch, place) → the module x → z that stands where a plain block has x + R(norm(x)).
ResidualPart: TypeAlias = Callable[[nn.Module | None, nn.Module, Place], nn.Module]


@dataclass(frozen=True)
class ResidualDesign:
    """`part` makes the residual branches of a block; `stack` makes a step of blocks, for designs with several streams."""

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
