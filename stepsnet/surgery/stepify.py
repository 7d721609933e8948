"""stepify: a residual model of another library becomes its stepped version, in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.macro.joins import Join, resolve_join
from stepsnet.models import Model
from stepsnet.models.design import STEPPED_STAGES, PlanLike, check_width, format_plans, resolve_plans
from stepsnet.surgery.budget import equal_cost
from stepsnet.surgery.hosts import Host, MakeBlock, Measured, first_line, rename
from stepsnet.surgery.report import ATTRIBUTE, SurgeryReport
from stepsnet.surgery.saving import remember
from stepsnet.surgery.waiting import JoinPart, make_waiting

AnyModel = TypeVar("AnyModel", bound=nn.Module)
HEADS = ("keep_dim", "keep_count")


class BlockOptions(TypedDict, total=False):
    """What stepify and deepen may be told about a model's blocks."""

    heads: str
    """ "keep_dim" (default) keeps the dimension of a head (where it does not divide the width, the nearest one that
    does, unless rotary positions fix it). "keep_count" keeps their number and makes them smaller; heads of transformers
    with a `head_dim` of their own keep their size too, so every block has keys and values of one shape."""
    blocks: str | Sequence[str] | None
    """Path(s) of the module list(s) of blocks, where they are not recognised."""
    make_block: MakeBlock | None
    """`make_block(width, index)` makes the blocks of a model that is neither timm's nor transformers'."""
    example: Any
    """An input of the model, or a tuple of inputs. It is needed with `make_block`."""
    options: Mapping[str, Any] | None
    """Options a timm model was created with that its blocks depend on."""


def stepify(
    model: AnyModel, plan: PlanLike | Mapping[str, Any], *, join: Join = "plain", **how: Unpack[BlockOptions]
) -> AnyModel:
    """Give `model` narrow blocks first and wide ones last by `plan`, in place; returns it.

    `plan` is "192x12, 272x6, 384x6" (one plan a stage, separated by ";"), a number of steps at equal cost (MACs within
    3 %, parameters within 5 %), or a budget for `stepsnet.plan`, such as {"macs": "4.6G", "blocks": 24}. Widths are
    channels of the state between blocks. A step may be narrower than the one before. Blocks are made anew, except in
    stages that the plan does not change; weights outside the blocks stay. `surgery_report(model)` tells what was done.
    `how`: see BlockOptions.
    """
    if isinstance(model, Model):
        raise UsageError(f"{type(model).__name__} is of this package: give the plan to create_model, plan={plan!r}")
    if isinstance(plan, Mapping):
        from stepsnet.surgery.planning import plan as plan_for_budget

        plan = plan_for_budget(model, options=how, **plan).plan
    host = find_host(model, **how)
    plans = resolve(host, plan)
    before, plain, record = host.measure(), plain_plans(host), host.record()
    with torch.device("meta") if _is_on_meta(model) else nullcontext():
        new = make_blocks(host, plans, join)
    with exchanged(host, new) as kept:
        try:
            after = host.measure()
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError) as error:
            what = f"{type(model).__name__} does not run with the plan '{format_plans(plans)}'"
            why = "something outside its blocks depends on their width or heads"
            raise UsageError(f"{what}: {why} ({first_line(error)})") from error
        kept.append(True)
    setattr(model, ATTRIBUTE, make_report("stepify", host, plain, plans, before, after, join=_join_name(join)))
    rule = how.get("heads", HEADS[0])
    remember(model, {"what": "stepify", **record, "plan": format_plans(plans), "join": join, "heads": rule})
    return model


def find_host(model: nn.Module, **how: Unpack[BlockOptions]) -> Host:
    """The adapter for a model: by `make_block`, or by the library its class is from."""
    heads, blocks, example = how.get("heads", HEADS[0]), how.get("blocks"), how.get("example")
    make_block, options = how.get("make_block"), how.get("options")
    if heads not in HEADS:
        raise UsageError(f"heads='{heads}' is not known; it is one of {', '.join(HEADS)}")
    if any(hasattr(module, "stepsnet_width") for module in model.modules()):
        raise UsageError(f"this {type(model).__name__} was stepified or deepened before; start from the plain model")
    paths = [blocks] if isinstance(blocks, str) else blocks
    inputs = example if isinstance(example, tuple) or example is None else (example,)
    if make_block is not None:
        if inputs is None:
            raise UsageError("make_block= needs example=, an input of the model")
        return Host(model, inputs, make_block, paths)
    if isinstance(model, Model):
        from stepsnet.surgery.native import NativeHost

        return NativeHost(model)
    if _is_pretrained_model(model):
        from stepsnet.surgery.transformers import TransformersHost

        return TransformersHost(model, heads, paths, inputs, options)
    if getattr(model, "pretrained_cfg", None) and any(
        kind.__module__.startswith("timm.") for kind in type(model).__mro__
    ):
        from stepsnet.surgery.timm import TimmHost

        return TimmHost(model, heads, paths, inputs, options)
    what = "give make_block=, a function (width, index) → block, and example=, an input"
    raise UsageError(f"{type(model).__name__} is neither a model of timm.create_model nor of transformers; {what}")


def resolve(host: Host, plan: PlanLike) -> tuple[StepPlan, ...]:
    """One plan a stage, checked against the widths of the host."""
    plain = plain_plans(host)
    if isinstance(plan, str) and plan.strip().isdigit():
        plan = int(plan)
    if isinstance(plan, int):
        first = max(0, len(plain) - STEPPED_STAGES)
        if plan < 1:
            raise UsageError(f"the number of steps is at least 1 (the plain model), not {plan}")
        return equal_cost(host, [plan if stage >= first else 1 for stage in range(len(plain))])
    plans = resolve_plans(plan, plain, round, any_order=True)
    for number, (one, own) in enumerate(zip(plans, plain, strict=True)):
        stage = f"stage {number + 1} of " if len(plain) > 1 else ""
        check_width(one, own.width, f"{stage}{type(host.model).__name__}")
        if max(one.widths) > own.width:
            raise UsageError(f"the plan '{one}' has a step of {max(one.widths)} channels; the model has {own.width}")
        if one.blocks < 1:
            raise UsageError(f"the plan '{one}' has no blocks")
        for width in one.widths:
            host.check_width(width, number)
    return plans


def make_blocks(host: Host, plans: Sequence[StepPlan], join: Join) -> list[list[nn.Module]]:
    """The blocks of each stage by its plan, each working on its step's channels.

    A plan of one step keeps the blocks there are.
    """
    host.prepare([plan.blocks for plan in plans])
    made: list[list[nn.Module]] = []
    for number, (plan, stage) in enumerate(zip(plans, host.stages, strict=True)):
        old = host.blocks(number)
        if plan == StepPlan.residual(stage.width, stage.depth):
            made.append(old)
            continue
        joins = _Joins(plan, join, stage.channel_dim)
        blocks: list[nn.Module] = []
        for step, (width, depth) in enumerate(zip(plan.widths, plan.depths, strict=True)):
            for position in range(depth):
                block = like(host.make_block(width, len(blocks), number), old[0])
                before = joins.pop_until(step) if position == 0 else []
                after = joins.pop_until(len(plan)) if len(blocks) == plan.blocks - 1 else []
                if width < stage.width or before or after:
                    make_waiting(block, width, stage.width, stage.channel_dim, before, after)
                blocks.append(block)
        made.append(blocks)
    return made


class _Joins:
    """Joins of a plan in order, one where a step is wider than the one before.

    A step without blocks hands its join to the next block, or to the end of the last one.
    """

    def __init__(self, plan: StepPlan, join: Join, channel_dim: int) -> None:
        make = resolve_join(join)
        self.left = [
            (step, JoinPart(make(narrow, wide - narrow, channel_dim), narrow, wide, channel_dim))
            for step, (narrow, wide) in enumerate(pairwise(plan.widths), start=1)
            if join != "plain" and narrow < wide
        ]

    def pop_until(self, step: int) -> list[nn.Module]:
        due: list[nn.Module] = [part for number, part in self.left if number <= step]
        self.left = [(number, part) for number, part in self.left if number > step]
        return due


@contextmanager
def exchanged(host: Host, new: Sequence[Sequence[nn.Module]]) -> Iterator[list[bool]]:
    """The host with new blocks.

    At the end the old ones return, unless something was put on the list that is yielded.
    """
    keep: list[bool] = []
    names = host.names()
    old = host.exchange(new)
    try:
        yield keep
    finally:
        if not keep:
            host.exchange(old)
            rename(host.model, names)


def like(block: nn.Module, old: nn.Module) -> nn.Module:
    """A new block on the device, in the number format and in the mode of an old one."""
    reference = next((p for p in old.parameters() if p.is_floating_point()), None)
    if reference is not None:
        on_meta = next(block.parameters(), reference).is_meta
        block = block.to("meta" if on_meta else reference.device, reference.dtype)
    return block.train(old.training)


def make_report(
    what: str,
    host: Host,
    plain: Sequence[StepPlan],
    plans: Sequence[StepPlan],
    before: Measured,
    after: Measured,
    **more: Any,
) -> SurgeryReport:
    heads = {width: host.heads(width, stage) for stage, plan in enumerate(plans) for width in plan.widths}
    shape = tuple(host.example[0].shape) if isinstance(host.example[0], Tensor) else ()
    return SurgeryReport(
        what=what,
        model=type(host.model).__name__,
        library=host.library,
        plan_before=host.format_plans(plain),
        plan_after=host.format_plans(plans),
        blocks_before=sum(plan.blocks for plan in plain),
        blocks_after=sum(stage.depth for stage in host.stages),
        params_before=before.params,
        params_after=after.params,
        macs_before=before.macs,
        macs_after=after.macs,
        input=shape,
        blocks=tuple(f"{stage.path}.{stage.start + i}" for stage in host.stages for i in range(stage.depth)),
        heads={width: count for width, count in heads.items() if count is not None},
        **more,
    )


def plain_plans(host: Host) -> tuple[StepPlan, ...]:
    return tuple(StepPlan.residual(stage.width, stage.depth) for stage in host.stages)


def _join_name(join: Join) -> str:
    return (
        join
        if isinstance(join, str)
        else type(join).__name__
        if isinstance(join, nn.Module)
        else getattr(join, "__name__", "own")
    )


def _is_on_meta(model: nn.Module) -> bool:
    return all(parameter.is_meta for parameter in model.parameters())


def _is_pretrained_model(model: nn.Module) -> bool:
    library = sys.modules.get("transformers")
    return library is not None and isinstance(model, library.PreTrainedModel)
