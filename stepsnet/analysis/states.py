"""The state of a residual network before and after every block, seen through hooks.

z_0 is what enters the first block and z_l what the l-th has made of it, always at full width: in a StepsNet the state after a block of
step i is [y_i, x_{i+1} … x_n], the slices still waiting included (the raw x, whatever the join will do to them); in a ReverseStepsNet
it is [the channels that go on, y_{i-1} … y_1], each channel where it was in z_0, though the output has them the other way round. Every
stage begins with a z_0 of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from stepsnet.analysis.find import find_blocks
from stepsnet.errors import UsageError
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
    """A block at work: the `number`-th of all, from 1, in its `stage` and `step`, both from 0. `dim` is where the channels are.

    `before` is the full-width state around what the block was given, `after` around what it returned; `parts` are the tensors that the
    state `after` is made of, as they stand in the graph. What is here has been copied where a block might change it in place, but `after`.
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
"""Called with what enters a stage and where its channels are; returns what shall enter it."""


def _as_it_is(z_0: Tensor, dim: int) -> Tensor:  # noqa: ARG001
    return z_0


def differentiable(z_0: Tensor, dim: int) -> Tensor:  # noqa: ARG001
    """z_0 with a gradient, also where all weights before it are frozen; no leaf, which a block must not change in place."""
    return z_0 if z_0.requires_grad else z_0.detach().requires_grad_().view_as(z_0)


@contextmanager
def watch_blocks(
    model: nn.Module, visit: Visit, *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None,
    begin: Begin = _as_it_is,
) -> Iterator[None]:
    """While this is open, every forward pass of `model` shows each block at work to `visit`.

    Without `blocks` they are those of the model's StepsNets, and where it has none, those that `find_blocks` finds, the better for
    `inputs` to try them with. With `blocks`, a module list of any network, the state is what a block returns; a stage begins where its
    shape changes. `channel_dim` is then 1 for maps of four dimensions and else the last.
    """
    with ExitStack() as hooks:
        watch = _Watch(visit, begin, hooks)
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
            raise UsageError(f"the pass went through none of the blocks: {type(model).__name__} does not call them")


def check_blocks(blocks: Any) -> list[nn.Module]:
    """The blocks that somebody has named, or a sentence if what was given is none."""
    found = list(blocks) if isinstance(blocks, Iterable) else []
    if not found or not all(isinstance(block, nn.Module) for block in found):
        given = "empty" if isinstance(blocks, Iterable) and not found else f"{type(blocks).__name__} {str(blocks)[:40]!r}"
        raise UsageError(f"blocks is {given}; give the modules whose outputs are the states of the network, in order, as model.layers")
    return found


def macro_nets(model: nn.Module) -> list[Net]:
    """The macro networks of a model, stage by stage."""
    return [module for module in model.modules() if isinstance(module, (StepsNet, ReverseStepsNet))]


class _Watch:
    """Hooks on the blocks of one model, and the count of what they see."""

    def __init__(self, visit: Visit, begin: Begin, hooks: ExitStack) -> None:
        self.visit, self.begin, self.hooks = visit, begin, hooks
        self.number, self.stage = 0, -1

    def enter(self, x: Tensor, dim: int) -> Tensor:
        self.stage += 1
        return self.begin(x, dim)

    def show(self, block: nn.Module, step: int, z_0: Tensor, before: Tensor, after: Tensor, dim: int, parts: tuple[Part, ...]) -> None:
        self.number += 1
        self.visit(Seen(block, self.number, self.stage, step, z_0, before, after, dim, parts))

    def net(self, net: Net) -> None:
        """The blocks of one macro network."""
        dim = net.channel_dim
        x: list[Tensor] = []  # what entered, in the graph, and its copy
        done: list[Part] = []

        def enter(_net: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            entering = self.enter(args[0], dim)
            x[:], done[:] = [entering, entering.clone()], []
            return entering, *args[1:]

        def around(y: Tensor) -> tuple[Tensor, tuple[Part, ...]]:
            """The full-width state around y, with what it is made of besides."""
            if isinstance(net, StepsNet):
                width = y.shape[dim]
                return net.state(x[0], y), (Part(x[0], width, net.widths[-1] - width),)
            rest = tuple(reversed(done))
            return torch.cat((y, *(narrowed(part, dim) for part in rest)), dim), rest

        self.hooks.callback(net.register_forward_pre_hook(enter).remove)
        for number, step in enumerate(net.steps):
            self._step(step, number, x, around, dim)
            if isinstance(net, ReverseStepsNet) and number + 1 < len(net.widths):
                wide, onward = net.widths[number : number + 2]

                def after_step(_step: nn.Module, _args: Any, z: Tensor, wide: int = wide, onward: int = onward) -> None:
                    done.append(Part(z, onward, wide - onward))

                self.hooks.callback(step.register_forward_hook(after_step).remove)

    def _step(
        self, step: nn.Module, number: int, x: list[Tensor], around: Callable[[Tensor], tuple[Tensor, tuple[Part, ...]]], dim: int
    ) -> None:
        merge = getattr(step, "merge", None)  # a stack of several streams has one
        before: list[Tensor] = []

        def state(y: Tensor) -> tuple[Tensor, tuple[Part, ...]]:
            return around(y if merge is None else merge(y))

        def enter_block(_block: nn.Module, args: tuple[Any, ...]) -> None:
            before[:] = [state(args[0])[0]]

        def after_block(block: nn.Module, _args: Any, y: Tensor) -> None:
            z, rest = state(y)
            self.show(block, number, x[1], before[0], z, dim, (Part(y), *rest))

        for block in getattr(step, "blocks", [step]):
            self.hooks.callback(block.register_forward_pre_hook(enter_block).remove)
            self.hooks.callback(block.register_forward_hook(after_block).remove)

    def list(self, blocks: list[nn.Module], channel_dim: int | None) -> None:
        """Blocks of any network, each of which takes the state and returns it."""
        start: list[Tensor] = []
        before: list[Tensor] = []

        def dim_of(z: Tensor) -> int:
            if channel_dim is not None and not -z.dim() <= channel_dim < z.dim():
                raise UsageError(f"channel_dim is {channel_dim}, but the states of the blocks have the shape {tuple(z.shape)}")
            return channel_dim if channel_dim is not None else 1 if z.dim() == 4 else -1

        def enter_block(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            z = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
            if z is None:
                raise UsageError(f"{type(block).__name__} takes no tensor, so it is no residual block")
            if block is not blocks[0] and not start:
                raise UsageError("blocks must be in the order in which the network calls them, and the first of them was not called first")
            if block is blocks[0] or start[0].shape != z.shape:
                entering = self.enter(z, dim_of(z))
                start[:] = [entering.clone()]
                args = tuple(entering if value is z else value for value in args)
                kwargs = {key: entering if value is z else value for key, value in kwargs.items()}
                z = entering
            before[:] = [z.clone()]
            return args, kwargs

        def after_block(block: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            z = output[0] if isinstance(output, (tuple, list)) and output else output
            if not isinstance(z, Tensor):
                raise UsageError(f"{type(block).__name__} returns no tensor, so it is no residual block")
            if z.shape != start[0].shape:  # a block that changes the shape begins a stage
                entering = self.enter(z, dim_of(z))
                output = entering if isinstance(output, Tensor) else (entering, *output[1:])
                start[:], before[:], z = [entering.clone()], [entering], entering
            self.show(block, 0, start[0], before[0], z, dim_of(z), (Part(z),))
            return output

        for block in blocks:
            self.hooks.callback(block.register_forward_pre_hook(enter_block, with_kwargs=True).remove)
            self.hooks.callback(block.register_forward_hook(after_block, with_kwargs=True).remove)


def narrowed(part: Part, dim: int, of: Tensor | None = None) -> Tensor:
    """The channels a part stands for, of its own tensor or of another of the same shape."""
    tensor = part.tensor if of is None else of
    return tensor if part.channels is None else tensor.narrow(dim, part.first, part.channels)


def first_tensor(output: Any) -> Tensor:
    """What a model returned, or the first tensor in it: the logits of a transformers model."""
    if isinstance(output, Tensor):
        return output
    inside = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    for value in inside:
        if isinstance(value, (Tensor, tuple, list, Mapping)):
            return first_tensor(value)
    raise UsageError(f"the model returned {type(output).__name__}, which holds no tensor; give loss=, a function that makes a number of it")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Look without leaving a trace: evaluation mode, no gradients, nothing compiled anew; every module's mode is put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), _eager():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _eager() -> AbstractContextManager[Any]:
    """Compiled modules run uncompiled. Nothing is compiled where the compiler was never imported, which takes seconds."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
