"""What the doctor measures: every block's share in the state, the gradient it gets, and what arrives at every join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.analysis.contribution import effective_rank
from stepsnet.analysis.find import carried
from stepsnet.analysis.gradients import check_loss
from stepsnet.analysis.results import wide
from stepsnet.analysis.shortcut import measure
from stepsnet.analysis.states import Seen, check_blocks, differentiable, first_tensor, narrowed, undisturbed, watch_blocks
from stepsnet.macro import StepsNet


@dataclass(frozen=True)
class BlockVitals:
    """One block. `update` and `cosine` concern the channels that it works on; in a StepsNet other slices wait beside them."""

    name: str
    stage: int
    step: int
    """Both from 1."""
    width: int
    """Of the channels it works on."""
    gamma: float
    sigma: float
    update: float
    """‖z_l − z_{l−1}‖ / ‖z_{l−1}‖: how much the block changes what it is given."""
    cosine: float
    """Of z_l with z_{l−1}."""
    rank: float
    """Effective rank of the whole state over positions: exponential of the entropy of its spectrum, the mean taken off."""
    full_rank: int
    """The largest it could be: channels, or positions less one."""
    largest: float
    """The largest |z_l|."""
    state_gradient: float
    """‖∂L/∂z_l‖, over the channels it works on."""
    weight_gradient: float
    """‖∂L/∂w‖ over its weights."""


@dataclass(frozen=True)
class JoinVitals:
    """Where x_i joins y_{i−1}: `ratio` is RMS(x_i)/RMS(y_{i−1}) as the next step sees them, after whatever the join does to x_i."""

    name: str
    kind: str
    width: int
    fresh: int
    ratio: float


@dataclass(frozen=True)
class Vitals:
    """All of one model. `without_idle`: how much its output changes, relatively, when the blocks numbered `idle` are left out together."""

    blocks: list[BlockVitals]
    joins: list[JoinVitals]
    idle: list[int]
    without_idle: float | None


def measure_vitals(
    model: nn.Module, *inputs: Any, loss: Callable[[], Tensor] | None = None, blocks: Iterable[nn.Module] | None = None,
    channel_dim: int | None = None, idle_below: float = 0.01,
) -> Vitals:
    """Look at `model(*inputs)` and at the gradients of `loss()`, which runs the model; by default at those of a random projection."""
    chosen = None if blocks is None else check_blocks(blocks)
    shortcut = measure(model, lambda: model(*inputs), *inputs, blocks=chosen, channel_dim=channel_dim)
    looks: list[_Look] = []
    with undisturbed(model), torch.enable_grad(), _joins(model) as joins:
        watching = watch_blocks(
            model, lambda seen: looks.append(_Look(seen)), *inputs, blocks=chosen, channel_dim=channel_dim, begin=differentiable
        )  # fmt: skip
        with watching:
            scalar = check_loss(loss() if loss is not None else _projection(model(*inputs)))
        gradients = _gradients(scalar, looks)
    names = {module: name for name, module in model.named_modules()}
    found = [
        BlockVitals(
            names.get(look.block, f"block {number}"), look.stage + 1, look.step + 1, look.width, gamma, sigma, look.update, look.cosine,
            look.rank, look.full_rank, look.largest, *norms,
        )
        for number, (look, gamma, sigma, norms) in enumerate(zip(looks, shortcut.gamma, shortcut.sigma, gradients, strict=True), 1)
    ]  # fmt: skip
    idle = [number for number, block in enumerate(found, 1) if block.update < idle_below]
    change = _change_without(model, inputs, [looks[number - 1].block for number in idle]) if idle else None
    return Vitals(found, joins, idle, change)


class _Look:
    """The numbers of one block, and its output until the gradient is known."""

    def __init__(self, seen: Seen) -> None:
        self.block, self.stage, self.step = seen.block, seen.stage, seen.step
        self.output = seen.parts[0].tensor
        with torch.no_grad():
            waiting = [narrowed(part, seen.dim) for part in seen.parts[1:]]
            before, after = wide(seen.before), wide(seen.after)
            self.width = after.shape[seen.dim] - sum(slice_.shape[seen.dim] for slice_ in waiting)
            beside = sum((wide(slice_).square().sum() for slice_ in waiting), torch.zeros(()))
            old, new = (before.square().sum() - beside).clamp(min=0).sqrt(), (after.square().sum() - beside).clamp(min=0).sqrt()
            self.update = float((after - before).norm() / old)
            self.cosine = float(((before * after).sum() - beside) / (old * new))
            self.largest = float(after.abs().max())
            self.rank = float(effective_rank(after, seen.dim))
            channels = after.shape[seen.dim]
            self.full_rank = min(channels, after.numel() // channels - 1)


def _gradients(scalar: Tensor, looks: Sequence[_Look]) -> list[tuple[float, float]]:
    """‖∂L/∂z‖ and ‖∂L/∂w‖ of every block."""
    weights = [[weight for weight in look.block.parameters() if weight.requires_grad] for look in looks]
    wanted = {id(tensor): tensor for tensor in (*(look.output for look in looks), *(weight for group in weights for weight in group))}
    wanted = {key: tensor for key, tensor in wanted.items() if tensor.requires_grad}
    gradients = dict(zip(wanted, torch.autograd.grad(scalar, list(wanted.values()), allow_unused=True), strict=True))

    def norm(tensors: Sequence[Tensor]) -> float:
        known = [wide(gradient).norm() for tensor in tensors if (gradient := gradients.get(id(tensor))) is not None]
        return float(torch.stack(known).norm()) if known else 0.0

    return [(norm([look.output]), norm(group)) for look, group in zip(looks, weights, strict=True)]


def _projection(output: Any) -> Tensor:
    """⟨output, v⟩ with a random v of norm 1, always the same: a gradient for models whose loss nobody has given. Of maps, over all."""
    maps = output if isinstance(output, list) and all(isinstance(z, Tensor) for z in output) else [first_tensor(output)]
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(z.shape, generator=generator).to(z.device) for z in maps]
    return torch.stack([(wide(z) * v).sum() / v.norm() for z, v in zip(maps, directions, strict=True)]).sum()


@contextmanager
def _joins(model: nn.Module) -> Iterator[list[JoinVitals]]:
    """What passes through the joins of the model's StepsNets while this is open."""
    found: list[JoinVitals] = []
    with ExitStack() as hooks:
        for name, net in model.named_modules():
            for number, join in enumerate(net.joins if isinstance(net, StepsNet) else ()):
                place = f"{name}.joins.{number}".lstrip(".")

                def after(join: nn.Module, args: tuple[Any, ...], out: Tensor, place: str = place, dim: int = net.channel_dim) -> None:
                    width, fresh = args[0].shape[dim], args[1].shape[dim]
                    y, x = wide(out.detach()).split((width, fresh), dim)
                    ratio = float((x.square().mean() / y.square().mean()).sqrt())
                    found.append(JoinVitals(place, type(join).__name__, width, fresh, ratio))

                hooks.callback(join.register_forward_hook(after).remove)
        yield found


def _change_without(model: nn.Module, inputs: Sequence[Any], blocks: Sequence[nn.Module]) -> float:
    """‖output without the blocks − output‖ / ‖output‖."""

    def skip(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        before, _ = carried(args, kwargs, output)
        return before if isinstance(output, Tensor) else (before, *output[1:])

    with undisturbed(model), ExitStack() as hooks:
        whole = wide(first_tensor(model(*inputs)))
        for block in blocks:
            hooks.callback(block.register_forward_hook(skip, with_kwargs=True).remove)
        return float((wide(first_tensor(model(*inputs))) - whole).norm() / whole.norm())
