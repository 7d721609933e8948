"""A trained StepsNet with parts of it removed, without retraining (Tables 6 and 7).

`measure(model, batch)` returns sum and count of a metric over a batch; the metric is the sum of sums over the sum of
counts. All batches are used once for each row, so an iterator is made a list first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from stepsnet.analysis.find import blocks_of
from stepsnet.analysis.states import Net, Result, macro_nets, step_label, undisturbed
from stepsnet.cost import count_params
from stepsnet.errors import UsageError

Measure: TypeAlias = Callable[[nn.Module, Any], tuple[float, float]]


@dataclass(frozen=True)
class MaskedPaths(Result):
    """The metric with the first (`slow`) or last (`fast`) `sizes` channels of x set to zero; first with none."""

    sizes: list[int]
    slow: list[float]
    fast: list[float]


@dataclass(frozen=True)
class DroppedBlocks(Result):
    """The metric without the last `dropped` blocks of one step, and their share of all blocks' parameters."""

    steps: list[str]
    """"none" first: the whole network"""
    dropped: list[int]
    share: list[float]
    metric: list[float]


def mask_paths(
    model: nn.Module, batches: Iterable[Any], measure: Measure, sizes: Sequence[int] | None = None
) -> MaskedPaths:
    """Table 6: set the first n or the last n channels of x to zero before the StepsNet, for every n in `sizes`.

    In a model of several stages this is done in all that have several steps. n is at most the width of the slow path
    x_1 and of the fast path, the other channels. The default `sizes` are one to five sixths of the narrower, as in the
    paper.
    """
    nets = _stepped(model)
    limit = min(min(_slow(net), max(net.widths) - _slow(net)) for net in nets)
    chosen = sorted({max(1, limit * part // 6) for part in range(1, 6)}) if sizes is None else list(sizes)
    if any(not 0 < size <= limit for size in chosen):
        raise UsageError(f"sizes are {chosen}, but must be from 1 to {limit}, the channels of the narrower path")
    batches = _repeatable(batches)
    whole = _metric(model, batches, measure)
    found: dict[str, list[float]] = {"slow": [whole], "fast": [whole]}
    for size in chosen:
        for path, values in found.items():
            with ExitStack() as hooks:
                for net in nets:
                    hooks.callback(net.register_forward_pre_hook(_mask(net, path, size)).remove)
                values.append(_metric(model, batches, measure))
    return MaskedPaths([0, *chosen], found["slow"], found["fast"])


def drop_blocks(model: nn.Module, batches: Iterable[Any], measure: Measure) -> DroppedBlocks:
    """Table 7: remove the last blocks of one step at a time, about equal computation from each.

    The unit is one block of the widest step. From a narrower step as many blocks are removed as have that many
    parameters together, but at most all; in all families parameters are proportional to multiply-accumulates
    (Steps-DeiT-S: 4, 2, 1). Stages are treated separately.
    """
    nets = _stepped(model)
    total = sum(count_params(block) for net in macro_nets(model) for block in blocks_of(net))
    batches = _repeatable(batches)
    rows: list[tuple[str, int, float, float]] = [("none", 0, 0.0, _metric(model, batches, measure))]
    for stage, net in enumerate(macro_nets(model)):
        stacks = [list(getattr(step, "blocks", [step])) for step in net.steps]
        unit = max((count_params(stack[-1]) for stack in stacks if stack), default=0)
        for number, stack in enumerate(stacks):
            if net not in nets or not stack:
                continue
            last = stack[-max(1, min(len(stack), round(unit / max(1, count_params(stack[-1]))))) :]
            with ExitStack() as hooks:
                for block in last:
                    hooks.callback(block.register_forward_hook(_pass_through).remove)
                share = sum(map(count_params, last)) / max(1, total)
                label = step_label(stage, number, len(macro_nets(model)))
                rows.append((label, len(last), share, _metric(model, batches, measure)))
    steps, dropped, share_of, metric = (list(column) for column in zip(*rows, strict=True))
    return DroppedBlocks(steps, dropped, share_of, metric)


def _stepped(model: nn.Module) -> list[Net]:
    """The macro networks with more than one step."""
    nets = [net for net in macro_nets(model) if len(net.widths) > 1]
    if not nets:
        raise UsageError(f"{type(model).__name__} has no StepsNet of several steps, so no paths or steps to remove")
    return nets


def _slow(net: Net) -> int:
    """The number of channels of x that pass all steps."""
    return min(net.widths)


def _mask(net: Net, path: str, size: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    first = 0 if path == "slow" else max(net.widths) - size

    def zero(_net: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0].clone()
        x.narrow(net.channel_dim, first, size).zero_()
        return x, *args[1:]

    return zero


def _pass_through(_block: nn.Module, args: tuple[Any, ...], _output: Tensor) -> Tensor:
    state: Tensor = args[0]
    return state


def _repeatable(batches: Iterable[Any]) -> Iterable[Any]:
    return list(batches) if isinstance(batches, Iterator) else batches


def _metric(model: nn.Module, batches: Iterable[Any], measure: Measure) -> float:
    total = count = 0.0
    with undisturbed(model):
        for batch in batches:
            found, of = measure(model, batch)
            total, count = total + float(found), count + float(of)
    if not count:
        raise UsageError("there are no batches to measure on")
    return total / count
