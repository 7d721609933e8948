"""The state of a residual network before and after every block, read by hooks.

z_0 is the input of the first block and z_l the state after block l, always at full width. In a StepsNet the state after
a block of step i is [y_i, x_{i+1} … x_n]: the channels that join later are part of it, unscaled by their joins. In a
ReverseStepsNet it is [the channels that continue, y_{i-1} … y_1]: each channel is where it was in z_0, although the
output has them in reverse order. Every stage starts with its own z_0.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from stepsnet.analysis.find import carried, find_blocks
from stepsnet.errors import UsageError
from stepsnet.files import finite
from stepsnet.macro import ReverseStepsNet, StepsNet

Net: TypeAlias = StepsNet | ReverseStepsNet


@dataclass(frozen=True)
class Part:
    """Channels of a tensor in the graph of the pass: all of them, or `channels` of them from `first` on."""

    tensor: Tensor
    first: int = 0
    channels: int | None = None


@dataclass(frozen=True)
class Seen:
    """One call of a block: number from 1 over the whole network, `stage` and `step` from 0, channels in dimension
    `dim`.

    `before` and `after` are the full-width states with the block's input and output in place. `parts` are the tensors
    of the graph that `after` consists of. All but `after` are copies where a block might change them in place.
    """

    block: nn.Module
    number: int
    stage: int
    step: int
    z_0: Tensor
    before: Tensor
    after: Tensor
    dim: int
    parts: tuple[Part, ...]


Visit: TypeAlias = Callable[[Seen], None]
Begin: TypeAlias = Callable[[Tensor, int], Tensor]
"""Gets the input of a stage and the dimension of its channels; returns the input to use instead."""


class Result:
    """Base class of results: frozen dataclasses of numbers and lists of numbers."""

    def to_json(self) -> dict[str, Any]:
        """The fields by name, with None for numbers that are not finite."""
        assert dataclasses.is_dataclass(self)
        return {field.name: finite(getattr(self, field.name)) for field in dataclasses.fields(self)}


def numbers(tensors: Sequence[Tensor]) -> list[float]:
    """Scalars as Python numbers, transferred at once."""
    return torch.stack([tensor.detach().double().cpu() for tensor in tensors]).tolist() if tensors else []


def step_label(stage: int, step: int, stages: int) -> str:
    """"step 2", or "stage 3, step 2" if there are several stages."""
    return f"stage {stage + 1}, step {step + 1}" if stages > 1 else f"step {step + 1}"


def wide(z: Tensor) -> Tensor:
    """The tensor in fp32 or fp64."""
    return z if z.dtype == torch.float64 else z.float()


def _unchanged(z_0: Tensor, dim: int) -> Tensor:  # noqa: ARG001
    return z_0


def differentiable(z_0: Tensor, dim: int) -> Tensor:  # noqa: ARG001
    """z_0 with a gradient, also behind frozen weights. It is no leaf, so a block may change it in place."""
    return z_0 if z_0.requires_grad else z_0.detach().requires_grad_().view_as(z_0)


@contextmanager
def watch_blocks(
    model: nn.Module, visit: Visit, *inputs: Any, blocks: Iterable[nn.Module] | None = None,
    channel_dim: int | None = None, begin: Begin = _unchanged,
) -> Iterator[None]:
    """While this is open, every forward pass of `model` calls `visit` after each block.

    Without `blocks` they are the blocks of the model's StepsNets; if it has none, those that `find_blocks` finds, more
    reliably with `inputs`. With `blocks`, modules of any network in order, the state is what a block returns, and a
    stage starts where its shape changes. `channel_dim` is then 1 for tensors of four dimensions and else the last.
    """
    with ExitStack() as hooks:
        watch = _Hooks(visit, begin, hooks)
        if blocks is not None:
            watch.list(check_blocks(blocks), channel_dim)
        elif nets := macro_nets(model):
            for net in nets:
                watch.net(net)
        else:
            for stack in find_blocks(model, *inputs):
                watch.list(stack.blocks, channel_dim if channel_dim is not None else stack.channel_dim)
        yield
        if not watch.number:
            raise UsageError(f"the forward pass of {type(model).__name__} does not call any of the blocks")


def check_blocks(blocks: Any) -> list[nn.Module]:
    """The blocks as a list; an error if they are no modules."""
    found = list(blocks) if isinstance(blocks, Iterable) else []
    if not found or not all(isinstance(block, nn.Module) for block in found):
        empty = isinstance(blocks, Iterable) and not found
        given = "empty" if empty else f"{type(blocks).__name__} {str(blocks)[:40]!r}"
        raise UsageError(f"blocks is {given}, but must be the residual blocks of the network in order, as model.layers")
    return found


def macro_nets(model: nn.Module) -> list[Net]:
    """The macro networks of a model, stage by stage."""
    return [module for module in model.modules() if isinstance(module, (StepsNet, ReverseStepsNet))]


class _Hooks:
    """The hooks on the blocks of one model; counts blocks and stages of a pass."""

    def __init__(self, visit: Visit, begin: Begin, hooks: ExitStack) -> None:
        self.visit, self.begin, self.hooks = visit, begin, hooks
        self.number, self.stage = 0, -1

    def enter(self, x: Tensor, dim: int) -> Tensor:
        self.stage += 1
        return self.begin(x, dim)

    def show(
        self, block: nn.Module, step: int, z_0: Tensor, before: Tensor, after: Tensor, dim: int, parts: tuple[Part, ...]
    ) -> None:
        self.number += 1
        self.visit(Seen(block, self.number, self.stage, step, z_0, before, after, dim, parts))

    def net(self, net: Net) -> None:
        """Hooks on the blocks of one macro network."""
        dim = net.channel_dim
        x: list[Tensor] = []  # the input of the network, in the graph, and its copy
        done: list[Part] = []

        def enter(_net: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            entering = self.enter(args[0], dim)
            x[:], done[:] = [entering, entering.clone()], []
            return entering, *args[1:]

        def full_width(y: Tensor) -> tuple[Tensor, tuple[Part, ...]]:
            """The full-width state that contains y, and its other parts."""
            if isinstance(net, StepsNet):
                width = y.shape[dim]
                return net.state(x[0], y), (Part(x[0], width, net.widths[-1] - width),)
            rest = tuple(reversed(done))
            return torch.cat((y, *(narrowed(part, dim) for part in rest)), dim), rest

        self.hooks.callback(net.register_forward_pre_hook(enter).remove)
        for number, step in enumerate(net.steps):
            self._step(step, number, x, full_width, dim)
            if isinstance(net, ReverseStepsNet) and number + 1 < len(net.widths):
                width, onward = net.widths[number : number + 2]

                def after_step(
                    _step: nn.Module, _args: Any, z: Tensor, width: int = width, onward: int = onward
                ) -> None:
                    done.append(Part(z, onward, width - onward))

                self.hooks.callback(step.register_forward_hook(after_step).remove)

    def _step(
        self, step: nn.Module, number: int, x: list[Tensor],
        full_width: Callable[[Tensor], tuple[Tensor, tuple[Part, ...]]], dim: int,
    ) -> None:
        merge = getattr(step, "merge", None)  # a stack of several streams has one
        before: list[Tensor] = []

        def state(y: Tensor) -> tuple[Tensor, tuple[Part, ...]]:
            return full_width(y if merge is None else merge(y))

        def enter_block(_block: nn.Module, args: tuple[Any, ...]) -> None:
            before[:] = [state(args[0])[0]]

        def after_block(block: nn.Module, _args: Any, y: Tensor) -> None:
            z, rest = state(y)
            self.show(block, number, x[1], before[0], z, dim, (Part(y), *rest))

        for block in getattr(step, "blocks", [step]):
            self.hooks.callback(block.register_forward_pre_hook(enter_block).remove)
            self.hooks.callback(block.register_forward_hook(after_block).remove)

    def list(self, blocks: list[nn.Module], channel_dim: int | None) -> None:
        """Hooks on blocks of any network, each of which takes the state and returns it."""
        start: list[Tensor] = []
        before: list[Tensor] = []

        def dim_of(z: Tensor) -> int:
            if channel_dim is not None and not -z.dim() <= channel_dim < z.dim():
                raise UsageError(f"channel_dim is {channel_dim}, but the blocks have states of shape {tuple(z.shape)}")
            return channel_dim if channel_dim is not None else 1 if z.dim() == 4 else -1

        def enter_block(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            z, _ = carried(args, kwargs, None)
            if z is None:
                raise UsageError(f"{type(block).__name__} takes no tensor, so it is not a residual block")
            if block is not blocks[0] and not start:
                raise UsageError("blocks must be in the order of their calls; the first one was not called first")
            if block is blocks[0] or start[0].shape != z.shape:
                entering = self.enter(z, dim_of(z))
                start[:] = [entering.clone()]
                args = tuple(entering if value is z else value for value in args)
                kwargs = {key: entering if value is z else value for key, value in kwargs.items()}
                z = entering
            before[:] = [z.clone()]
            return args, kwargs

        def after_block(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            _, z = carried(args, kwargs, output)
            if z is None:
                raise UsageError(f"{type(block).__name__} returns no tensor, so it is not a residual block")
            if z.shape != start[0].shape:  # a block that changes the shape starts a stage
                entering = self.enter(z, dim_of(z))
                output = entering if isinstance(output, Tensor) else (entering, *output[1:])
                start[:], before[:], z = [entering.clone()], [entering], entering
            self.show(block, 0, start[0], before[0], z, dim_of(z), (Part(z),))
            return output

        for block in blocks:
            self.hooks.callback(block.register_forward_pre_hook(enter_block, with_kwargs=True).remove)
            self.hooks.callback(block.register_forward_hook(after_block, with_kwargs=True).remove)


def narrowed(part: Part, dim: int, of: Tensor | None = None) -> Tensor:
    """The channels of a part, from its own tensor or from another of the same shape."""
    tensor = part.tensor if of is None else of
    return tensor if part.channels is None else tensor.narrow(dim, part.first, part.channels)


def first_tensor(output: Any) -> Tensor:
    """The output of a model, or the first tensor in it: the logits of a transformers model."""
    if isinstance(output, Tensor):
        return output
    inside = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    for value in inside:
        if isinstance(value, (Tensor, tuple, list, Mapping)):
            return first_tensor(value)
    raise UsageError(f"the model returned {type(output).__name__}, which holds no tensor; "
                     "give loss=, a function that makes a scalar of it")  # fmt: skip


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, nothing compiled; afterwards every module has its mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), _eager():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _eager() -> AbstractContextManager[Any]:
    """Compiled modules run uncompiled. If the compiler was never imported, which takes seconds, nothing is compiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
