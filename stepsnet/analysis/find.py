"""The residual blocks of any model, found from outside: nothing here knows timm or transformers.

A residual block returns what it was given, plus something: it can be repeated. So the stacks of a network are runs of modules of one type
with equal parameters, side by side in a ModuleList or Sequential. Stages that hold such runs are looked into; what lies inside a block,
the experts of a mixture for instance, is not. Given inputs, one pass through the model settles what structure leaves open: which modules
keep the shape of their input, and where its channels are.
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
    """Residual blocks in the order of execution. `name` says where in the model they are, `channel_dim` where their channels are."""

    name: str
    blocks: list[nn.Module]
    channel_dim: int


def find_blocks(model: nn.Module, *inputs: Any) -> list[FoundStack]:
    """The residual stacks of `model`, stage by stage; with `inputs`, confirmed in one pass `model(*inputs)`.

    The StepsNets of this package are known; in any other model the blocks are runs of alike modules (see above). The block that opens a
    stage and changes the shape is not among them. Where nothing convincing is found, a UsageError says so.
    """
    nets = [(name, net) for name, net in model.named_modules() if isinstance(net, (StepsNet, ReverseStepsNet))]
    if nets:
        stacks = [FoundStack(name, blocks_of(net), net.channel_dim) for name, net in nets]
    else:
        runs = list(_lists_of(model, _block_types(model)))
        stacks = _confirm(model, runs, inputs) if runs and inputs else [stack for name, run in runs for stack in _guess(name, run)]
    found = [stack for stack in stacks if stack.blocks]
    if not found:
        why = "no run of alike modules that return a tensor of the shape they were given"
        raise UsageError(f"{type(model).__name__} has {why}; name its residual blocks yourself, from Python, as in blocks=model.layers")
    return found


def blocks_of(net: StepsNet | ReverseStepsNet) -> list[nn.Module]:
    """The blocks of a macro network, step by step; a step that is no stack counts as one block."""
    return [block for step in net.steps for block in getattr(step, "blocks", [step])]


def carried(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[Tensor | None, Tensor | None]:
    """The state that a call hands to a block and the one it returns, whatever goes along with them; None for one that is not there."""
    before = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    after = output[0] if isinstance(output, (tuple, list)) and output else output
    return before, after if isinstance(after, Tensor) else None


def _block_types(model: nn.Module) -> set[type[nn.Module]]:
    """Types of modules that stand side by side with their like, outermost first: what is inside a block is not looked at."""
    types: set[type[nn.Module]] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop(0)
        children = list(module.children())
        alike: set[nn.Module] = set()
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            for one, other in pairwise(children):
                if _could_be_block(one) and _alike(one, other):
                    alike |= {one, other}
        types |= {type(block) for block in alike}
        waiting += [child for child in children if child not in alike]
    return types


def _lists_of(model: nn.Module, types: set[type[nn.Module]], name: str = "") -> Iterator[tuple[str, list[nn.Module]]]:
    """Runs of modules of one of the types in lists, with the name of the list, in order of registration, none inside another."""
    if not isinstance(model, (nn.ModuleList, nn.Sequential)):
        inside: list[tuple[str, nn.Module]] = list(model.named_children())
    else:
        inside = []
        position = 0
        for kind, members in groupby(model, type):
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
    """Something made of parts with weights; neither a single layer nor a stage, which is nothing but a list of alike modules."""
    parts = [child for child in module.children() if any(True for _ in child.parameters())]
    if not parts or isinstance(module, nn.ModuleList):
        return False
    only = module if isinstance(module, nn.Sequential) else parts[0] if len(parts) == 1 else None
    inside = list(only) if isinstance(only, (nn.ModuleList, nn.Sequential)) else []
    stage = len(inside) > 1 and all(_could_be_block(part) and _alike(inside[0], part) for part in inside)
    return not stage


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Of one type, and of equal shape in all parameters that both have, which are most (T5's first block has one more)."""
    if type(one) is not type(other):
        return False
    first, second = ({name: parameter.shape for name, parameter in module.named_parameters()} for module in (one, other))
    common = first.keys() & second.keys()
    return 2 * len(common) > max(len(first), len(second)) and all(first[name] == second[name] for name in common)


def _guess(name: str, run: list[nn.Module]) -> Iterator[FoundStack]:
    """The stacks of a run by structure alone: cut where parameters change. One module in front of others, alone, opens the stage."""
    pieces: list[list[nn.Module]] = [[run[0]]]
    for block in run[1:]:
        if _alike(pieces[-1][-1], block):
            pieces[-1].append(block)
        else:
            pieces.append([block])
    if len(pieces) > 1 and len(pieces[0]) == 1:
        pieces.pop(0)
    for piece in pieces:
        yield FoundStack(_part_of(name, run, piece), piece, _channel_dim(piece[0]))


def _confirm(model: nn.Module, runs: list[tuple[str, list[nn.Module]]], inputs: tuple[Any, ...]) -> list[FoundStack]:
    """The stacks of all runs as a pass shows them: modules that keep the shape, cut where it changes, in the order of execution."""
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
    """1 where the first layer of a block is one that works on maps, else the last; a map's shape overrules if only one dimension fits."""
    layers = [module for module in block.modules() if not any(True for _ in module.children()) and any(True for _ in module.parameters())]
    first = layers[0]  # `_could_be_block` has seen to it that there is one
    maps = isinstance(first, CHANNELS_FIRST) or "2d" in type(first).__name__
    guess = 1 if maps else -1
    if shape is None or len(shape) < 3:
        return guess if shape is None else -1
    width = _width_before(first)
    fitting = [dim for dim in (1, -1) if shape[dim] == width]
    return fitting[0] if len(fitting) == 1 else guess


def _width_before(layer: nn.Module) -> int | None:
    """How many channels a layer takes, if it says so."""
    for attribute in ("in_features", "in_channels", "num_features", "num_channels"):
        if isinstance(found := getattr(layer, attribute, None), int):
            return found
    weight = getattr(layer, "weight", None)  # of a norm
    return len(weight) if isinstance(weight, Tensor) and weight.dim() == 1 else None
