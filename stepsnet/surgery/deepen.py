"""deepen: narrow residual blocks are added to a trained model; its outputs do not change until they are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from stepsnet.analysis.find import carried
from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.surgery.hosts import Host, evaluating, refill, rename
from stepsnet.surgery.identity import make_identity
from stepsnet.surgery.report import ATTRIBUTE, surgery_report
from stepsnet.surgery.saving import forget, remember
from stepsnet.surgery.stepify import (
    HEADS,
    AnyModel,
    BlockOptions,
    exchanged,
    find_host,
    like,
    make_report,
    plain_plans,
)
from stepsnet.surgery.waiting import make_waiting

At = str | Sequence[int]
UNDO = "stepsnet_undo"


_Order = list[int | tuple[int]]
"""A stage after deepen: the number of an old block, or (width,) of a new one."""

_Call = tuple[Tensor, tuple[Any, ...], dict[str, Any]]
"""What a block is called with: the state, and what follows it."""


@dataclass(frozen=True)
class _Undo:
    """What undeepen needs: the lists of blocks with positions and names of the old ones, and what the library keeps."""

    lists: tuple[tuple[str, tuple[int, ...]], ...]
    names: dict[str, list[str]]
    restore: Callable[[nn.Module, Mapping[str, Any]], None]
    bookkeeping: dict[str, Any]


def deepen(
    model: AnyModel,
    new: str,
    *,
    at: At = "front",
    train: str = "all",
    verify: Any = None,
    **how: Unpack[BlockOptions],
) -> AnyModel:
    """Add blocks to a trained `model`, in place; returns it. Its outputs stay equal, which is verified.

    `new` is "256x12": 12 blocks that work on the first 256 channels. In a model of several stages they go to the stage
    with the most blocks; ";" separates stages, as in ";;192x6;", to say otherwise. `at` is "front", "every:4" (after
    every four old blocks), or a list of positions: the numbers of the old blocks to stand before. `train` "new" freezes
    everything else, see `freeze_old`.

    `verify` is an input or a tuple of inputs for the model; without it, random ones. The largest change of any output
    must be 0, else a UsageError names the block. `how`: see BlockOptions.
    """
    if train not in ("all", "new"):
        raise UsageError(f"train='{train}' is not known; it is 'all' or 'new'")
    host = find_host(model, **how)
    batch, orders = _batch(host, verify), _orders(host, new, at)
    expected, calls = _look(host, batch)
    _insert(host, orders, how.get("heads", HEADS[0]), calls, lambda names: _verify(host, names, batch, expected))
    report = surgery_report(model)
    gradients = tuple(_with_gradient(host, batch, report.added))
    setattr(model, ATTRIBUTE, replace(report, difference=0.0, with_gradient=gradients))
    return freeze_old(model) if train == "new" else model


def insert(model: nn.Module, orders: list[_Order], **how: Unpack[BlockOptions]) -> None:
    """Add blocks as `orders` says, with the weights they are made with: for a model whose weights are loaded next."""
    _insert(find_host(model, **how), orders, how.get("heads", HEADS[0]))


def _insert(
    host: Host,
    orders: list[_Order],
    heads: str,
    calls: Sequence[_Call] | None = None,
    check: Callable[[dict[nn.Module, str]], None] | None = None,
) -> None:
    """Exchange the blocks, check, and keep on the model what was done. Nothing is changed where the check fails."""
    model = host.model
    before, plain, bookkeeping, record = host.measure(), plain_plans(host), host.bookkeeping(), host.record()
    own_names, made = host.names(), _make(host, orders, calls)
    with exchanged(host, made) as kept:
        names = _names(host, orders)
        if check is not None:
            check({block: name for block, (name, old) in names.items() if old is None})
        after = host.measure()
        kept.append(True)
    moved = {
        f"{path}.{own_names[path][old]}": name
        for (name, old), path in zip(names.values(), _paths(host), strict=True)
        if old is not None
    }
    added = tuple(name for name, old in names.values() if old is None)
    plans = [_plan(order, stage.width) for order, stage in zip(orders, host.stages, strict=True)]
    setattr(model, ATTRIBUTE, make_report("deepen", host, plain, plans, before, after, moved=moved, added=added))
    lists = tuple(
        (stage.path, _kept_positions(stage.start, order, len(host.container(number))))
        for number, (stage, order) in enumerate(zip(host.stages, orders, strict=True))
    )
    setattr(model, UNDO, _Undo(lists, own_names, type(host).restore, bookkeeping))
    remember(model, {"what": "deepen", **record, "orders": orders, "heads": heads})


def _names(host: Host, orders: Sequence[_Order]) -> dict[nn.Module, tuple[str, int | None]]:
    """Each block's name, and the number it had in its list, None for a new one."""
    return {
        block: (f"{stage.path}.{stage.start + position}", stage.start + what if isinstance(what, int) else None)
        for number, (stage, order) in enumerate(zip(host.stages, orders, strict=True))
        for position, (what, block) in enumerate(zip(order, host.blocks(number), strict=True))
    }


def _paths(host: Host) -> list[str]:
    """The path of the list of every block, stage by stage."""
    return [stage.path for stage in host.stages for _ in range(stage.depth)]


def undeepen(model: AnyModel) -> AnyModel:
    """Remove the blocks that deepen added, in place; returns the model.

    What the old blocks have learned since stays.
    """
    undo = getattr(model, UNDO, None)
    if not isinstance(undo, _Undo):
        raise UsageError(f"this {type(model).__name__} was not deepened, so there is nothing to remove")
    for path, positions in undo.lists:
        container: Any = model.get_submodule(path)
        members = list(container)
        refill(container, [members[position] for position in positions])
    rename(model, undo.names)
    undo.restore(model, undo.bookkeeping)
    delattr(model, UNDO)
    delattr(model, ATTRIBUTE)
    forget(model)
    return model


def freeze_old(model: AnyModel) -> AnyModel:
    """Let only the blocks that deepen added be trained: all other parameters get requires_grad=False.

    Returns the model.
    """
    added = surgery_report(model).added
    if not added:
        raise UsageError(f"this {type(model).__name__} has no new blocks; deepen adds them")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(name.startswith(f"{block}.") for block in added))
    return model


def _orders(host: Host, new: str, at: At) -> list[_Order]:
    """The blocks of each stage, old and new, in their order."""
    parts = [part.strip() for part in new.split(";")]
    if len(parts) == 1:
        longest = max(range(len(host.stages)), key=lambda stage: host.stages[stage].depth)
        parts = [new if stage == longest else "" for stage in range(len(host.stages))]
    if not any(parts):
        raise UsageError(f"'{new}' adds no block; write WIDTHxBLOCKS, as '256x12'")
    if len(parts) != len(host.stages):
        raise UsageError(
            f"'{new}' is for {len(parts)} stages, but the model has {len(host.stages)}; write WIDTHxBLOCKS, as '256x12'"
        )
    orders: list[_Order] = []
    for number, (part, stage) in enumerate(zip(parts, host.stages, strict=True)):
        widths = [width for width, depth in _pairs(part) for _ in range(depth)]
        for width in dict.fromkeys(widths):
            if width > stage.width:
                raise UsageError(f"new blocks of width {width} do not fit into a state of {stage.width} channels"
                                 f"{_chosen_stage(host, number)}")
            host.check_width(width, number)
        orders.append(_place(widths, stage.depth, at))
    if all(isinstance(what, int) for order in orders for what in order):
        raise UsageError(f"'{new}' adds no block; write WIDTHxBLOCKS, as '256x12'")
    return orders


def _pairs(part: str) -> list[tuple[int, int]]:
    plan = StepPlan.parse(part) if part else None
    return list(zip(plan.widths, plan.depths, strict=True)) if plan else []


def _chosen_stage(host: Host, number: int) -> str:
    """Which stage was meant, and how to choose another one, as the end of a sentence; empty for one stage."""
    if len(host.stages) == 1:
        return ""
    kind = "step" if host.library == "stepsnet" else "stage"
    return f" of {kind} {number + 1}; to choose the {kind}, write one part for each, as '{host.new_blocks(number)}'"


def _place(widths: list[int], depth: int, at: At) -> _Order:
    if not widths:
        return list(range(depth))
    if at == "front":
        positions = [0]
    elif isinstance(at, (str, int)):
        kind, _, every = str(at).partition(":")
        if kind != "every" or not every.isdigit() or not 1 <= int(every) <= depth:
            raise UsageError(
                f"at={at!r} is not known; it is 'front', 'every:N' with N from 1 to {depth}, or a list of positions"
            )
        positions = list(range(int(every), depth + 1, int(every)))
    else:
        positions = sorted(at)
    if not positions or positions[0] < 0 or positions[-1] > depth:
        raise UsageError(f"at={list(at)}: positions are numbers of old blocks, from 0 to {depth}")
    if len(set(positions)) < len(positions):
        raise UsageError(f"at={list(at)} names a position twice; give each position once")
    if len(positions) > len(widths) and not isinstance(at, str):
        raise UsageError(f"at={list(at)} has {len(positions)} positions for {len(widths)} new blocks; leave some out")
    groups: dict[int, list[int]] = {}
    for number, width in enumerate(widths):  # as evenly as it goes, the first places first
        groups.setdefault(positions[number * len(positions) // len(widths)], []).append(width)
    order: _Order = []
    for old in range(depth + 1):
        order += [(width,) for width in groups.get(old, [])]
        order += [old] if old < depth else []
    return order


def _make(host: Host, orders: Sequence[_Order], calls: Sequence[_Call] | None) -> list[list[nn.Module]]:
    """Old blocks and new ones, in order; with `calls`, the new ones are the identity."""
    origins = [_origins(order, stage.depth) for order, stage in zip(orders, host.stages, strict=True)]
    host.prepare([len(order) for order in orders], origins)
    made: list[list[nn.Module]] = []
    for number, (order, stage) in enumerate(zip(orders, host.stages, strict=True)):
        old = host.blocks(number)
        blocks: list[nn.Module] = []
        for index, what in enumerate(order):
            if isinstance(what, int):
                blocks.append(old[what])
                continue
            block = like(host.make_block(what[0], index, number), old[0])
            if calls is not None:
                state, args, kwargs = calls[number]
                part = state.narrow(stage.channel_dim, 0, what[0]).clone()
                make_identity(block, part, args, kwargs, stage.channel_dim)
            blocks.append(make_waiting(block, what[0], stage.width, stage.channel_dim))
        made.append(blocks)
    return made


def _origins(order: _Order, depth: int) -> list[int]:
    """For each block the old block it is, or stands before; at the end, the last one."""
    found, following = [], depth - 1
    for what in reversed(order):
        following = what if isinstance(what, int) else following
        found.append(following)
    return found[::-1]


def _batch(host: Host, verify: Any) -> tuple[Any, ...]:
    """The inputs given, or random ones of the example's shape."""
    if verify is not None:
        return verify if isinstance(verify, tuple) else (verify,)
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(x.shape, generator=generator, dtype=x.dtype)
        if isinstance(x, Tensor) and x.is_floating_point()
        else torch.randint(0, 8, x.shape, generator=generator)
        if isinstance(x, Tensor)
        else x
        for x in host.example
    )


def _run(host: Host, batch: tuple[Any, ...]) -> list[Tensor]:
    """All tensors of the model's output, flat, without what transformers records of every block."""
    device = next(host.model.parameters()).device
    with torch.random.fork_rng():  # some models draw random numbers even in evaluation
        torch.manual_seed(0)
        return _tensors(host.runs(*(x.to(device) if isinstance(x, Tensor) else x for x in batch)))


def _tensors(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, Mapping):
        out = [value for key, value in out.items() if not key.endswith(("hidden_states", "attentions"))]
    values = out if isinstance(out, (tuple, list)) else []
    return [tensor for value in values for tensor in _tensors(value)]


def _look(host: Host, batch: tuple[Any, ...]) -> tuple[list[Tensor], list[_Call]]:
    """The outputs of the model as it is, and what the first block of each stage is called with."""
    calls: dict[nn.Module, _Call] = {}

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state, _ = carried(args, kwargs, None)
        assert state is not None
        rest = {key: _without_cache(value, key) for key, value in kwargs.items() if value is not state}
        calls.setdefault(block, (state, tuple(map(_without_cache, args[1:])), rest))

    firsts = [host.blocks(stage)[0] for stage in range(len(host.stages))]
    with ExitStack() as hooks, evaluating(host.model):
        for block in firsts:
            hooks.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
        expected = _run(host, batch)
    return expected, [calls[block] for block in firsts]


def _without_cache(value: Any, key: str = "") -> Any:
    """A cache of keys and values would remember every trial of a block."""
    if type(value).__name__.endswith("Cache"):
        return None
    return False if key == "use_cache" else value


def _verify(host: Host, named: Mapping[nn.Module, str], batch: tuple[Any, ...], expected: Sequence[Tensor]) -> None:
    """One pass in which no new block may change the state, and no output may move."""
    changes: dict[str, float] = {}

    def after(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        x, y = carried(args, kwargs, out)
        assert x is not None
        assert y is not None
        if not torch.equal(x, y):
            changes[named[block]] = float((x - y).abs().max())

    with ExitStack() as hooks, evaluating(host.model):
        for block in named:
            hooks.callback(block.register_forward_hook(after, with_kwargs=True).remove)
        found = _run(host, batch)
    if changes:
        name, change = next(iter(changes.items()))
        raise UsageError(f"the new block '{name}' changes the state by up to {change:g}; it should be the identity")
    if moved := [(a, b) for a, b in zip(found, expected, strict=True) if not torch.equal(a, b)]:
        change = max(float((a.double() - b.double()).abs().max()) for a, b in moved)
        first = next(iter(named.values()))
        raise UsageError(
            f"outputs change by up to {change:g} although every new block returns its input: something outside the "
            f"blocks depends on their number or position; the first new block is '{first}'"
        )


def _with_gradient(host: Host, batch: tuple[Any, ...], added: Sequence[str]) -> list[str]:
    """Parameters of new blocks whose gradient at the first step is not zero. Gradients that were there are put back."""
    model = host.model
    parameters = {
        name: p for name, p in model.named_parameters() if any(name.startswith(f"{block}.") for block in added)
    }
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.enable_grad():
            floating = [tensor for tensor in _run(host, batch) if tensor.requires_grad]
            weights = [
                torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).to(tensor) for tensor in floating
            ]
            total = sum(
                ((tensor * weight).sum() for tensor, weight in zip(floating, weights, strict=True)), torch.zeros(())
            )
        gradients: Sequence[Tensor | None] = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    finally:
        for module, training in modes:
            module.training = training
    return [
        name
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None and bool(gradient.any())
    ]


def _plan(order: _Order, width: int) -> StepPlan:
    """Runs of equal width: "256x12, 384x12"."""
    runs = [
        (size, len(list(run)))
        for size, run in groupby(order, lambda what: width if isinstance(what, int) else what[0])
    ]
    return StepPlan(tuple(size for size, _ in runs), tuple(count for _, count in runs), any_order=True)


def _kept_positions(start: int, order: _Order, length: int) -> tuple[int, ...]:
    inside = [start + position for position, what in enumerate(order) if isinstance(what, int)]
    return (*range(start), *inside, *range(start + len(order), length))
