"""What the planner asks of a model: its plain stages, the widths its blocks may have, and how to build it under a plan.

The costs of all widths come from one probe: the model built with one block of every width, counted in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from stepsnet.macro import Stack, StepPlan
from stepsnet.models import Model, create_model, get_variant
from stepsnet.models.design import format_plans
from stepsnet.planner.search import SECONDS, StageCosts

STEPPED_STAGES = 2
"""How many of the last stages of a hierarchical network take steps: in the first ones they have little effect (Table
11)."""


class Subject(Protocol):
    """A model that can be built under any plan.

    `ZooSubject` is ours; `stepsnet.surgery` has one for other libraries' models.
    """

    name: str
    plain: tuple[StepPlan, ...]
    """The residual network: one plan of one step for each stage."""

    def widths(self, stage: int) -> Sequence[int]:
        """The widths that a block of this stage may have, up to the stage's own."""

    def unit(self, stage: int) -> int:
        """What the widths of this stage are multiples of; `widths` need not have every multiple."""

    def build(self, plan: str, device: str) -> nn.Module:
        """The model under a plan, in evaluation mode."""

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The residual blocks of a built model that plans count, in the order of execution."""

    def inputs(self, model: nn.Module, batch: int, device: str) -> tuple[Any, ...]:
        """Arguments of one forward pass."""


class ZooSubject:
    """A registered model of this package."""

    def __init__(self, name: str) -> None:
        self.name = get_variant(name).name
        model = create_model(name, device="meta")
        depths = plain_depths(name)
        self.plain = tuple(
            StepPlan.residual(plan.width, depth) for plan, depth in zip(model.plans, depths, strict=True)
        )

    def widths(self, stage: int) -> Sequence[int]:
        unit, width = self.unit(stage), self.plain[stage].width
        return [*range(unit, width, unit), width]

    def unit(self, stage: int) -> int:
        return 8 if self.plain[stage].width >= 64 else 2  # the tiny test models are narrower than what kernels like

    def build(self, plan: str, device: str) -> nn.Module:
        return create_model(self.name, plan=plan, device=device).eval()

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return [block for stack in model.modules() if isinstance(stack, Stack) for block in stack.blocks]

    def inputs(self, model: nn.Module, batch: int, device: str) -> tuple[Any, ...]:
        assert isinstance(model, Model)
        example = model.dummy_input()
        return (torch.zeros((batch, *example.shape[1:]), dtype=example.dtype, device=device),)


def plain_depths(name: str) -> tuple[int, ...]:
    """The depth of each stage of the residual network that `name` is, or that it is the StepsNet version of."""
    options = get_variant(name).options
    if "depths" in options:
        return tuple(options["depths"])
    return (options["depth"],)


@dataclass(frozen=True)
class Counted:
    """The stages of a subject with the costs of their blocks, and what everything outside the blocks costs."""

    stages: tuple[StageCosts, ...]
    fixed: NDArray[np.float64]


def probe_plan(subject: Subject) -> tuple[str, list[tuple[int, int]]]:
    """A plan with one block of every width in each stage, and the (stage, width) of its blocks in order."""
    plans, places = [], []
    for number, plain in enumerate(subject.plain):
        widths = tuple(subject.widths(number)) if number in stepped_stages(subject) else (plain.width,)
        plans.append(StepPlan(widths, (1,) * len(widths)))
        places += [(number, width) for width in widths]
    return format_plans(plans), places


def stepped_stages(subject: Subject) -> range:
    count = len(subject.plain)
    return range(max(0, count - STEPPED_STAGES), count)


def count(subject: Subject) -> Counted:
    """Parameters and MACs of one block of every width, counted on the meta device in one pass. Seconds are 0."""
    plan, places = probe_plan(subject)
    probe = subject.build(plan, "meta")
    blocks = subject.blocks(probe)
    assert len(blocks) == len(places), f"{subject.name}: {len(blocks)} blocks for {len(places)} places"
    macs = [0] * len(blocks)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        hooks = [hook for index, block in enumerate(blocks) for hook in _count_into(macs, index, block, counter)]
        functional_call(probe, {}, subject.inputs(probe, 1, "meta"))
        total = counter.get_total_flops() // 2
    for hook in hooks:
        hook.remove()
    params = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    everything = sum(parameter.numel() for parameter in probe.parameters())
    costs: list[dict[int, NDArray[np.float64]]] = [{} for _ in subject.plain]
    for (stage, width), block_params, block_macs in zip(places, params, macs, strict=True):
        costs[stage][width] = np.array([block_params, block_macs, 0.0])
    stages = tuple(
        StageCosts(plain.width, plain.blocks, cost) for plain, cost in zip(subject.plain, costs, strict=True)
    )
    return Counted(stages, np.array([everything - sum(params), total - sum(macs), 0.0]))


def with_all_multiples(counted: Counted, subject: Subject) -> Counted:
    """The multiples of the unit between the counted widths too, if the costs of a block are exactly a quadratic of its
    width. Seconds, if they were measured, are interpolated.
    """
    stages = []
    for number, stage in enumerate(counted.stages):
        known = sorted(stage.costs)
        every = [*range(known[0], known[-1], subject.unit(number)), known[-1]]
        costs = _quadratic(stage.costs, every) if len(known) > 3 else {}
        exact = costs.keys() >= set(known) and all(np.array_equal(costs[width], stage.costs[width]) for width in known)
        stages.append(replace(stage, costs=costs) if exact else stage)
    return replace(counted, stages=tuple(stages))


def _quadratic(costs: Mapping[int, NDArray[np.float64]], widths: Sequence[int]) -> dict[int, NDArray[np.float64]]:
    """Costs at `widths`: counts on the parabola through the smallest, the middle and the largest known width."""
    known = sorted(costs)
    points = [known[0], known[len(known) // 2], known[-1]]
    found = {}
    for width in widths:
        shares = [np.prod([(width - other) / (own - other) for other in points if other != own]) for own in points]
        counts = sum(share * costs[own][:SECONDS] for share, own in zip(shares, points, strict=True))
        seconds = np.interp(width, known, [costs[own][SECONDS] for own in known])
        found[width] = np.array([*np.rint(counts), seconds])
    return found


def _count_into(macs: list[int], index: int, block: nn.Module, counter: FlopCounterMode) -> Sequence[Any]:
    """Hooks that write the MACs between a block's start and its end to macs[index]."""

    def start(*_: Any) -> None:
        macs[index] = -(counter.get_total_flops() // 2)

    def stop(*_: Any) -> None:
        macs[index] += counter.get_total_flops() // 2

    return block.register_forward_pre_hook(start), block.register_forward_hook(stop)
