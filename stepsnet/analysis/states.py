"""The state of a residual network after every block, seen through hooks.

z_0 is what enters the first block and z_l what the l-th has made of it, always at full width: in a StepsNet the state after a block of
step i is [y_i, x_{i+1} … x_n], the slices still waiting included (the raw x, whatever the join will do to them); in a ReverseStepsNet
it is [y_1 … y_{i-1}, the channels that go on]. Every stage begins with a z_0 of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, StepsNet

Visit: TypeAlias = Callable[[Tensor, Tensor, int], None]
"""Called after every block with z_0, z_l and the dimension of the channels."""


@contextmanager
def watch_blocks(
    model: nn.Module, visit: Visit, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None
) -> Iterator[None]:
    """While this is open, every forward pass of `model` shows each block's state to `visit`.

    Without `blocks` they are found in the model's StepsNets. With `blocks`, a module list of any network, the state is what a block
    returns; a stage begins where its shape changes. `channel_dim` is then 1 for maps of four dimensions and else the last.
    """
    with ExitStack() as hooks:
        if blocks is not None:
            _watch_list(list(blocks), visit, channel_dim, hooks)
        else:
            nets = _nets(model)
            if not nets:
                name = type(model).__name__
                raise UsageError(f"{name} contains no StepsNet; name its residual blocks yourself, as in blocks=model.layers")
            for net in nets:
                _watch_net(net, visit, hooks)
        yield


def has_steps(model: nn.Module) -> bool:
    """Whether the blocks of `model` are found without being named."""
    return bool(_nets(model))


def _nets(model: nn.Module) -> list[StepsNet | ReverseStepsNet]:
    return [module for module in model.modules() if isinstance(module, (StepsNet, ReverseStepsNet))]


def _watch_net(net: StepsNet | ReverseStepsNet, visit: Visit, hooks: ExitStack) -> None:
    start: list[Tensor] = []
    done: list[Tensor] = []

    def begin(_net: nn.Module, args: tuple[Any, ...]) -> None:
        start[:], done[:] = [args[0]], []

    hooks.callback(net.register_forward_pre_hook(begin).remove)
    for number, step in enumerate(net.steps):
        leave = cast("nn.Module | None", getattr(step, "leave", None))

        def after_block(_block: nn.Module, _args: Any, y: Tensor, leave: nn.Module | None = leave) -> None:
            y = y if leave is None else leave(y)  # a design with several streams reads its state out of them
            z = net.state(start[0], y) if isinstance(net, StepsNet) else torch.cat((*done, y), net.channel_dim)
            visit(start[0], z, net.channel_dim)

        for block in getattr(step, "blocks", [step]):
            hooks.callback(block.register_forward_hook(after_block).remove)
        if isinstance(net, ReverseStepsNet) and number + 1 < len(net.widths):
            onward = net.widths[number + 1]

            def after_step(_step: nn.Module, _args: Any, z: Tensor, onward: int = onward) -> None:
                done.append(z.narrow(net.channel_dim, onward, z.shape[net.channel_dim] - onward))

            hooks.callback(step.register_forward_hook(after_step).remove)


def _watch_list(blocks: list[nn.Module], visit: Visit, channel_dim: int | None, hooks: ExitStack) -> None:
    if not blocks:
        raise UsageError("blocks is empty; give the modules whose outputs are the states of the network, in order")
    start: list[Tensor] = []

    def after(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        before = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        z = output[0] if isinstance(output, (tuple, list)) else output
        if before is None or not isinstance(z, Tensor):
            raise UsageError(f"{type(block).__name__} does not take a tensor and return one, so it is no residual block")
        if block is blocks[0] or start[0].shape != before.shape:
            start[:] = [before]
        if z.shape != start[0].shape:
            start[:] = [z]
        visit(start[0], z, channel_dim if channel_dim is not None else 1 if z.dim() == 4 else -1)

    for block in blocks:
        hooks.callback(block.register_forward_hook(after, with_kwargs=True).remove)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Look without leaving a trace: evaluation mode, no gradients, nothing compiled anew; every module's mode is put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, training in modes:
            module.training = training
