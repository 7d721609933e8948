"""The doctor's measurements: update, γ and gradients of every block, sizes at every join, traits of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.analysis.contribution import effective_rank
from stepsnet.analysis.find import carried
from stepsnet.analysis.gradients import check_loss
from stepsnet.analysis.shortcut import measure
from stepsnet.analysis.states import (
    Seen,
    check_blocks,
    differentiable,
    first_tensor,
    macro_nets,
    narrowed,
    undisturbed,
    watch_blocks,
    wide,
)
from stepsnet.errors import UsageError
from stepsnet.macro import StepsNet
from stepsnet.models import Model, create_model


@dataclass(frozen=True)
class BlockMeasurement:
    """One block. `update` and `cosine` are over the channels it works on; channels that join later do not count."""

    name: str
    stage: int
    step: int
    """Both from 1."""
    width: int
    """Channels it works on."""
    gamma: float
    sigma: float
    update: float
    """‖z_l − z_{l−1}‖ / ‖z_{l−1}‖: the relative change of its input."""
    cosine: float
    """Of z_l with z_{l−1}."""
    rank: float
    """Effective rank of the full-width state over positions: exponential of the entropy of its spectrum, centred."""
    full_rank: int
    """Its largest possible value: channels, or positions minus one."""
    largest: float
    """The largest |z_l|."""
    state_gradient: float
    """‖∂L/∂y‖, y the output of the block: over the channels it works on. `GradientFlow.activation_norms` is over all
    channels of the state, and larger where others join later."""
    weight_gradient: float
    """‖∂L/∂w‖ over its weights."""


@dataclass(frozen=True)
class JoinMeasurement:
    """Where x_i, `fresh` channels, joins y_{i−1}. `ratio` is RMS(x_i)/RMS(y_{i−1}) in the output of the join."""

    name: str
    kind: str
    width: int
    fresh: int
    ratio: float


@dataclass(frozen=True)
class Measurements:
    """Of one model. `without_idle` is the relative change of its output without all the blocks numbered `idle`."""

    blocks: list[BlockMeasurement]
    joins: list[JoinMeasurement]
    idle: list[int]
    without_idle: float | None


def measure_model(
    model: nn.Module, *inputs: Any, loss: Callable[[], Tensor] | None = None,
    blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None, idle_below: float = 0.01,
) -> Measurements:
    """Measure `model(*inputs)` and the gradients of `loss()`, which runs the model; default: a random projection."""
    chosen = None if blocks is None else check_blocks(blocks)
    shortcut = measure(model, lambda: model(*inputs), *inputs, blocks=chosen, channel_dim=channel_dim)
    looks: list[_Look] = []
    with undisturbed(model), torch.enable_grad(), _joins(model) as joins:
        watching = watch_blocks(
            model, lambda seen: looks.append(_Look(seen)), *inputs, blocks=chosen, channel_dim=channel_dim,
            begin=differentiable,
        )  # fmt: skip
        with watching:
            scalar = check_loss(loss() if loss is not None else _projection(model(*inputs)))
        gradients = _gradients(scalar, looks)
    names = {module: name for name, module in model.named_modules()}
    found = [
        BlockMeasurement(
            names.get(look.block, f"block {number}"), look.stage + 1, look.step + 1, look.width, gamma, sigma,
            look.update, look.cosine, look.rank, look.full_rank, look.largest, *norms,
        )
        for number, (look, gamma, sigma, norms) in enumerate(
            zip(looks, shortcut.gamma, shortcut.sigma, gradients, strict=True), 1)
    ]  # fmt: skip
    idle = [number for number, block in enumerate(found, 1) if block.update < idle_below]
    change = _change_without(model, inputs, [looks[number - 1].block for number in idle]) if idle else None
    return Measurements(found, joins, idle, change)


class _Look:
    """The numbers of one block, and its output until the gradient is known."""

    def __init__(self, seen: Seen) -> None:
        self.block, self.stage, self.step = seen.block, seen.stage, seen.step
        self.output = seen.parts[0].tensor
        dim = seen.dim
        with torch.no_grad():
            waiting = [narrowed(part, dim) for part in seen.parts[1:]]
            before, after = wide(seen.before), wide(seen.after)
            self.width = after.shape[dim] - sum(part.shape[dim] for part in waiting)
            others = sum((wide(part).square().sum() for part in waiting), torch.zeros(()))
            old, new = ((state.square().sum() - others).clamp(min=0).sqrt() for state in (before, after))
            self.update = float((after - before).norm() / old)
            self.cosine = float(((before * after).sum() - others) / (old * new))
            self.largest = float(after.abs().max())
            self.rank = float(effective_rank(after, dim))
            self.full_rank = min(after.shape[dim], after.numel() // after.shape[dim] - 1)


def _gradients(scalar: Tensor, looks: Sequence[_Look]) -> list[tuple[float, float]]:
    """‖∂L/∂y‖ and ‖∂L/∂w‖ of every block."""
    weights = [[weight for weight in look.block.parameters() if weight.requires_grad] for look in looks]
    tensors = (*(look.output for look in looks), *(weight for group in weights for weight in group))
    wanted = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
    found = torch.autograd.grad(scalar, list(wanted.values()), allow_unused=True)
    gradients = dict(zip(wanted, found, strict=True))

    def norm(group: Sequence[Tensor]) -> float:
        known = [wide(gradient).norm() for tensor in group if (gradient := gradients.get(id(tensor))) is not None]
        return float(torch.stack(known).norm()) if known else 0.0

    return [(norm([look.output]), norm(group)) for look, group in zip(looks, weights, strict=True)]


def _projection(output: Any) -> Tensor:
    """⟨output, v⟩ with a fixed random v of norm 1, summed over feature maps: a loss for models without one."""
    whole = isinstance(output, list) and all(isinstance(z, Tensor) for z in output)
    maps = output if whole else [first_tensor(output)]
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(z.shape, generator=generator).to(z.device) for z in maps]
    return torch.stack([(wide(z) * v).sum() / v.norm() for z, v in zip(maps, directions, strict=True)]).sum()


@contextmanager
def _joins(model: nn.Module) -> Iterator[list[JoinMeasurement]]:
    """The sizes at the joins of the model's StepsNets, in passes while this is open."""
    found: list[JoinMeasurement] = []
    with ExitStack() as hooks:
        for name, net in model.named_modules():
            for number, join in enumerate(net.joins if isinstance(net, StepsNet) else ()):
                place = f"{name}.joins.{number}".lstrip(".")

                def after(
                    join: nn.Module, args: tuple[Any, ...], out: Tensor, place: str = place, dim: int = net.channel_dim
                ) -> None:
                    width, fresh = args[0].shape[dim], args[1].shape[dim]
                    y, x = wide(out.detach()).split((width, fresh), dim)
                    ratio = float((x.square().mean() / y.square().mean()).sqrt())
                    found.append(JoinMeasurement(place, type(join).__name__, width, fresh, ratio))

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


STARTS_AT_ZERO = ("rezero", "skipinit")
SCALES = ("gamma", "layer_scale", "layerscale")
"""Names of LayerScale's parameters where the block itself has them: ConvNeXt, BEiT, CaiT."""
SMALL = 1e-3
"""Branch scales that start at this value or less need not start lower."""


@dataclass(frozen=True)
class Traits:
    """What a model has already, so that it is not advised again, and how it can be divided into steps."""

    steps: bool = False
    """It has several steps."""
    scales: bool = False
    """Its branches have learned scales: LayerScale, ReZero."""
    small: bool = False
    """All these scales start near zero."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """The options for three matched steps; empty if it has steps, or if its family has none for its widths."""


def traits_of(model: nn.Module) -> Traits:
    """From the types of its modules, and in models of other libraries from the names of types and parameters."""
    steps = any(len(net.steps) > 1 for net in macro_nets(model))
    starts = [start for module in model.modules() if (start := _scale_start(module)) is not None]
    return Traits(steps, bool(starts), bool(starts) and max(starts) <= SMALL, {} if steps else _cut(model))


def _scale_start(module: nn.Module) -> float | None:
    """The initial value of a module's branch scales, infinity if it is unknown; None if it has no scales."""
    kind = type(module).__name__.lower()
    if any(word in kind for word in STARTS_AT_ZERO):
        return 0.0
    own = (name for name, _ in module.named_parameters(recurse=False))
    named = any(name.startswith(SCALES) for name in own)
    if "layerscale" not in kind and ("norm" in kind or not named):  # norms may call their scale gamma, too
        return None
    start = getattr(module, "start", getattr(module, "init_values", None))  # of this package, of timm
    return float(start) if isinstance(start, int | float) else math.inf


def _cut(model: nn.Module) -> dict[str, str]:
    """`plan=3`; for a model with its own plan also its width and blocks, because `plan=3` starts from its name's."""
    changes = {"plan": "3", "join": "matched_grad"}
    made = next((module for module in model.modules() if isinstance(module, Model)), None)
    if made is None or not made.default_cfg:
        return changes
    options: dict[str, Any] = made.default_cfg["options"]
    if options.get("macro", "steps") != "steps":
        changes["macro"] = "steps"  # others have no joins
    sizes = {} if options.get("plan") is None else _sizes(made, "depths" in options)
    modules = ("join", "macro", "residual")  # may be modules of the user, which must not be used in a second model
    others = {key: value for key, value in options.items() if key not in modules}
    try:
        stepped = create_model(made.default_cfg["architecture"], device="meta", **(others | sizes | {"plan": 3}))
    except UsageError:
        return {}
    as_wide = [plan.width for plan in stepped.plans] == [plan.width for plan in made.plans]
    return changes | {key: str(size) for key, size in sizes.items()} if as_wide else {}


def _sizes(model: Model, staged: bool) -> dict[str, Any]:
    """The options for a residual model of these depths; in a staged one if its widths double from stage to stage."""
    depths = [plan.blocks for plan in model.plans]
    return {"embed_dim": model.plans[0].width, **({"depths": depths} if staged else {"depth": depths[0]})}
