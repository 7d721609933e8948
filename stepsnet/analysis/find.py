"""Finds the residual blocks of any model by its structure, without knowledge of timm or transformers.

A residual block returns its input plus something, so it can be repeated. The stacks of a network are therefore runs of
modules of one type with equal parameter shapes in a ModuleList or Sequential. Stages that contain such runs are
searched; the inside of a block, for example the experts of a mixture, is not. With inputs, one pass through the model
decides what the structure leaves open: which modules keep the shape of their input, and in which dimension its channels
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, StepsNet

CHANNELS_FIRST = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm, _NormBase)


@dataclass(frozen=True)
class FoundStack:
    """Residual blocks in the order of execution, the name of their list, and the dimension of their channels."""

    name: str
    blocks: list[nn.Module]
    channel_dim: int


def find_blocks(model: nn.Module, *inputs: Any) -> list[FoundStack]:
    """The residual stacks of `model`, stage by stage; with `inputs`, confirmed in one pass `model(*inputs)`.

    They are the blocks of its StepsNets or, in other models, runs of similar modules (see above). A first block of a
    stage that changes the shape is left out. Raises UsageError if there are none.
    """
    nets = [(name, net) for name, net in model.named_modules() if isinstance(net, (StepsNet, ReverseStepsNet))]
    if nets:
        stacks = [FoundStack(name, blocks_of(net), net.channel_dim) for name, net in nets]
    else:
        runs = list(_lists_of(model, _block_types(model)))
        guessed = [stack for name, run in runs for stack in _guess(name, run)]
        stacks = _confirm(model, runs, inputs) if runs and inputs else guessed
    found = [stack for stack in stacks if stack.blocks]
    if not found:
        why = "no list of similar modules that return a tensor of the shape of their input"
        raise UsageError(
            f"{type(model).__name__} has {why}; from Python, give its residual blocks, as blocks=model.layers"
        )
    return found


def blocks_of(net: StepsNet | ReverseStepsNet) -> list[nn.Module]:
    """The blocks of a macro network, step by step; a step that is not a stack counts as one block."""
    return [block for step in net.steps for block in getattr(step, "blocks", [step])]


def carried(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[Tensor | None, Tensor | None]:
    """The first tensor among the arguments of a call, and the tensor it returns, alone or first; or None."""
    before = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    after = output[0] if isinstance(output, (tuple, list)) and output else output
    return before, after if isinstance(after, Tensor) else None


def _kind(module: nn.Module) -> str:
    """The name of a module's class; a block that `stepify` made narrower keeps it, in a subclass."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _block_types(model: nn.Module) -> set[str]:
    """Types of modules with a similar neighbour in a list, outermost first; blocks are not searched inside."""
    types: set[str] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop(0)
        children = list(module.children())
        similar: set[nn.Module] = set()
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            for one, other in pairwise(children):
                if _could_be_block(one) and _similar(one, other):
                    similar |= {one, other}
        types |= {_kind(block) for block in similar}
        waiting += [child for child in children if child not in similar]
    return types


def _lists_of(model: nn.Module, types: set[str], name: str = "") -> Iterator[tuple[str, list[nn.Module]]]:
    """Runs of modules of these types, with the names of their lists, in order of registration, not nested."""
    if not isinstance(model, (nn.ModuleList, nn.Sequential)):
        inside: list[tuple[str, nn.Module]] = list(model.named_children())
    else:
        inside = []
        position = 0
        for kind, members in groupby(model, _kind):
            run = list(members)
            if kind in types and _could_be_block(run[0]):
                whole = len(run) == len(model)
                yield name if whole else f"{name}[{position}:{position + len(run)}]", run
            else:
                inside += [(str(position + index), child) for index, child in enumerate(run)]
            position += len(run)
    for child_name, child in inside:
        yield from _lists_of(child, types, f"{name}.{child_name}" if name else child_name)


def _could_be_block(module: nn.Module) -> bool:
    """Whether a module has parts with weights, and is no stage, that is only a list of similar modules."""
    parts = [child for child in module.children() if any(True for _ in child.parameters())]
    if not parts or isinstance(module, nn.ModuleList):
        return False
    only = module if isinstance(module, nn.Sequential) else parts[0] if len(parts) == 1 else None
    inside = list(only) if isinstance(only, (nn.ModuleList, nn.Sequential)) else []
    stage = len(inside) > 1 and all(_could_be_block(part) and _similar(inside[0], part) for part in inside)
    return not stage


def _similar(one: nn.Module, other: nn.Module) -> bool:
    """Equal types, and equal shapes of the parameters of both, which must be most (T5's first block has one more)."""
    if type(one) is not type(other):
        return False
    first, second = ({name: weight.shape for name, weight in module.named_parameters()} for module in (one, other))
    common = first.keys() & second.keys()
    return 2 * len(common) > max(len(first), len(second)) and all(first[name] == second[name] for name in common)


def _guess(name: str, run: list[nn.Module]) -> Iterator[FoundStack]:
    """The stacks of a run by structure alone, split where parameter shapes change; a single first one is left out."""
    pieces: list[list[nn.Module]] = [[run[0]]]
    for block in run[1:]:
        if _similar(pieces[-1][-1], block):
            pieces[-1].append(block)
        else:
            pieces.append([block])
    if len(pieces) > 1 and len(pieces[0]) == 1:
        pieces.pop(0)
    for piece in pieces:
        yield FoundStack(_part_of(name, run, piece), piece, _channel_dim(piece[0]))


def _confirm(model: nn.Module, runs: list[tuple[str, list[nn.Module]]], inputs: tuple[Any, ...]) -> list[FoundStack]:
    """The stacks of all runs by a pass: modules that keep the shape, split where it changes, in order of execution."""
    from stepsnet.analysis.states import undisturbed

    shapes: dict[nn.Module, tuple[int, ...] | None] = {}

    def after(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given, z = carried(args, kwargs, output)
        kept = z is not None and given is not None and z.shape == given.shape
        shapes.setdefault(block, tuple(z.shape) if z is not None and kept else None)

    with undisturbed(model), ExitStack() as hooks:
        for block in (block for _, run in runs for block in run):
            hooks.callback(block.register_forward_hook(after, with_kwargs=True).remove)
        model(*inputs)
    order = list(shapes)
    found = []
    for name, run in runs:
        for shape, piece in ((shape, list(group)) for shape, group in groupby(run, shapes.get)):
            if shape is not None:
                found.append(FoundStack(_part_of(name, run, piece), piece, _channel_dim(piece[0], shape)))
    return sorted(found, key=lambda stack: order.index(stack.blocks[0]))


def _part_of(name: str, run: list[nn.Module], piece: list[nn.Module]) -> str:
    if len(piece) == len(run):
        return name
    start = run.index(piece[0])
    whole, _, offset = name.partition("[")  # the run itself may be a part of its list: blocks[2:8]
    start += int(offset.partition(":")[0] or 0)
    return f"{whole}[{start}:{start + len(piece)}]"


def _channel_dim(block: nn.Module, shape: tuple[int, ...] | None = None) -> int:
    """1 if the first layer of a block works on maps, else the last; if the shape fits only one of them, that one."""
    leaves = (module for module in block.modules() if not any(True for _ in module.children()))
    first = next(module for module in leaves if any(True for _ in module.parameters()))  # `_could_be_block` ensures one
    maps = isinstance(first, CHANNELS_FIRST) or "2d" in type(first).__name__
    guess = 1 if maps else -1
    if shape is None or len(shape) < 3:
        return guess if shape is None else -1
    width = _width_before(first)
    fitting = [dim for dim in (1, -1) if shape[dim] == width]
    return fitting[0] if len(fitting) == 1 else guess


def _width_before(layer: nn.Module) -> int | None:
    """The input channels of a layer, if known."""
    for attribute in ("in_features", "in_channels", "num_features", "num_channels"):
        if isinstance(found := getattr(layer, attribute, None), int):
            return found
    weight = getattr(layer, "weight", None)  # of a norm
    return len(weight) if isinstance(weight, Tensor) and weight.dim() == 1 else None
