"""Gradients (Sec. 3.1): from every block to the input through the normalised state, and of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.analysis.shortcut import deviation
from stepsnet.analysis.states import (
    Part,
    Result,
    Seen,
    check_blocks,
    differentiable,
    first_tensor,
    narrowed,
    numbers,
    step_label,
    undisturbed,
    watch_blocks,
    wide,
)
from stepsnet.errors import UsageError


@dataclass(frozen=True)
class GradientFlow(Result):
    """One number for each block in the order of execution; `step_norms` has one for each of `steps`.

    `dz` is the diagonal of ∂ẑ_l/∂ẑ_0, where ẑ is the state with mean 0 and σ 1 over the channels of each position, and
    z_0 = μ_0 + σ_0 ẑ_0. It is estimated with random directions v of mean 0, perpendicular to ẑ_0: ⟨v, ∂ẑ_l/∂ẑ_0 v⟩ /
    ⟨v, P_l v⟩ at each position, averaged over positions and directions. P_l removes from v its mean and its part along
    ẑ_l, in which a normalised state cannot move. If the branches do not depend on z_0, as in Eq. 2, `dz` is exactly γ_l
    = σ_0/σ_l; the gradient through the branches adds to it or subtracts from it. Stopped gradients, as in a matched
    join, count as in back-propagation. `gain` is the root mean square of ‖(∂ẑ_l/∂ẑ_0)ᵀu‖ / ‖u‖ for random u: how much
    of a gradient at block l reaches the start, through the shortcut or the branches.
    """

    dz: list[float]
    gain: list[float]
    gamma: list[float]
    """σ_0/σ_l, the value of `dz` by Eq. 2"""
    block_norms: list[float]
    """norm of the gradient of the loss with respect to the block's parameters"""
    activation_norms: list[float]
    """‖∂L/∂z_l‖, z_l the full-width state after the block, over all samples"""
    step_norms: list[float]
    """the same for the parameters of all blocks of a step"""
    steps: list[str]
    block: list[int]
    stage: list[int]
    loss: float


def gradient_flow(
    model: nn.Module, *inputs: Any, blocks: Iterable[nn.Module] | None = None, channel_dim: int | None = None,
    loss: Callable[[Any], Tensor] | None = None, probes: int = 1, seed: int = 0,
) -> GradientFlow:
    """∂ẑ_l/∂ẑ_0 and gradient norms on one batch, `model(*inputs)`; `blocks` and `channel_dim` as in `shortcut_ratio`.

    `loss` makes a scalar of the model's output; by default it is the cross-entropy of the last dimension against random
    classes, the loss of an untrained classifier or language model. `probes` is the number of random directions for
    ∂ẑ_l/∂ẑ_0, each of which takes a backward pass from every block: with many positions one is enough. All random
    numbers come from `seed`. The model runs in evaluation mode: dropout is off and batch norms use their running
    statistics. It is left unchanged, including .grad.
    """
    scalar = loss or (lambda output: random_class_loss(first_tensor(output), seed))
    return measure_flow(
        model, lambda: scalar(model(*inputs)), *inputs, blocks=blocks, channel_dim=channel_dim, probes=probes, seed=seed
    )  # fmt: skip


def measure_flow(
    model: nn.Module, loss: Callable[[], Tensor], *inputs: Any, blocks: Iterable[nn.Module] | None = None,
    channel_dim: int | None = None, probes: int = 1, seed: int = 0,
) -> GradientFlow:
    """The same, with `loss()` running one pass through `model`: a task's loss on a batch of its data."""
    blocks = None if blocks is None else check_blocks(blocks)
    generator = probe_generator(seed)
    with undisturbed(model), torch.enable_grad():
        found = torch.stack([_normalised_flow(model, inputs, blocks, channel_dim, generator) for _ in range(probes)])
        back = _backward(model, inputs, blocks, channel_dim, loss)
    dz, gain, gamma = found.unbind(-1)
    return GradientFlow(dz.mean(0).tolist(), gain.square().mean(0).sqrt().tolist(), gamma.mean(0).tolist(), **back)


def random_class_loss(output: Tensor, seed: int = 0) -> Tensor:
    """Mean cross-entropy over the last dimension against random classes; a scalar output is the loss itself."""
    if output.dim() == 0:
        return output
    generator = probe_generator(seed)
    classes = torch.randint(output.shape[-1], output.shape[:-1], generator=generator).to(output.device)
    return nn.functional.cross_entropy(wide(output).reshape(-1, output.shape[-1]), classes.reshape(-1))


def check_loss(value: Any) -> Tensor:
    """The loss, or an error if it cannot be differentiated."""
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        given = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise UsageError(f"the loss must be a scalar that depends on the model, not {given}")
    return value


def probe_generator(seed: int) -> torch.Generator:
    """Random numbers that differ from those of the inputs, even with the same seed."""
    return torch.Generator().manual_seed(seed + 0x9E3779B97F4A7C15 // 2)


def _normalised_flow(
    model: nn.Module, inputs: tuple[Any, ...], blocks: list[nn.Module] | None, channel_dim: int | None,
    generator: torch.Generator,
) -> Tensor:
    """∂ẑ_l/∂ẑ_0, its gain and γ of every block (L, 3), by a backward pass from each to the start of its stage.

    With u = v / ⟨v, P_l v⟩ at each position, the mean of ⟨v, Jv⟩ / ⟨v, P_l v⟩ is ⟨Jᵀu, v⟩; a backward pass gives Jᵀu.
    """
    found: list[Tensor] = []
    start: list[_Start] = []

    def begin(z_0: Tensor, dim: int) -> Tensor:
        start[:] = [_Start(z_0.detach().requires_grad_(), dim, generator)]
        return start[0].z_0.view_as(z_0)  # the first block may change its input in place, which a leaf forbids

    def visit(seen: Seen) -> None:
        found.append(_from_block(wide(seen.after), start[0]))

    with watch_blocks(model, visit, *inputs, blocks=blocks, channel_dim=channel_dim, begin=begin):
        model(*inputs)
    return torch.stack(found)


class _Start:
    """z_0 of a stage, a leaf of the graph, and a random direction v in which ẑ_0 can move: mean 0 and v ⊥ ẑ_0."""

    def __init__(self, z_0: Tensor, dim: int, generator: torch.Generator) -> None:
        self.z_0, self.dim = z_0, dim
        values = wide(z_0.detach())
        self.sigma = deviation(values, dim)
        self.z_hat = _normalised(values, dim)
        v = torch.randn(values.shape, generator=generator, dtype=values.dtype).to(values.device)
        self.v = _project(v, self.z_hat, dim)


def _from_block(z: Tensor, start: _Start) -> Tensor:
    dim, v = start.dim, start.v
    sigma, z_hat = deviation(z.detach(), dim), _normalised(z.detach(), dim)
    alive = (sigma > 0) & (start.sigma > 0)  # a position with equal channels has no direction
    u = _project(v, z_hat, dim)
    u = torch.where(alive.unsqueeze(dim), u / ((v * u).sum(dim) * alive.sum()).unsqueeze(dim), 0.0)
    dz = torch.where(alive.unsqueeze(dim), u / sigma.unsqueeze(dim), 0.0)  # through the normalisation; u has P_l
    (gradient,) = torch.autograd.grad(z, start.z_0, dz, retain_graph=True)
    back = wide(gradient) * start.sigma.unsqueeze(dim)
    back = torch.where((start.sigma > 0).unsqueeze(dim), _project(back, start.z_hat, dim), 0.0)
    return torch.stack(((back * v).sum(), back.norm() / u.norm(), (start.sigma[alive] / sigma[alive]).mean()))


def _normalised(z: Tensor, dim: int) -> Tensor:
    return (z - z.mean(dim, keepdim=True)) / deviation(z, dim).unsqueeze(dim)


def _project(v: Tensor, z_hat: Tensor, dim: int) -> Tensor:
    """v without its mean and its part along ẑ: the derivative of the normalisation, without the factor 1/σ."""
    v = v - v.mean(dim, keepdim=True)
    return v - z_hat * (v * z_hat).mean(dim, keepdim=True)  # the mean of ẑ² is 1


def _backward(
    model: nn.Module, inputs: tuple[Any, ...], blocks: list[nn.Module] | None, channel_dim: int | None,
    loss: Callable[[], Tensor],
) -> dict[str, Any]:
    """The norms of the gradients of the loss."""
    calls: list[Seen] = []

    with watch_blocks(model, calls.append, *inputs, blocks=blocks, channel_dim=channel_dim, begin=differentiable):
        value = check_loss(loss())
    states = [part.tensor for seen in calls for part in seen.parts]
    weights = [parameter for seen in calls for parameter in seen.block.parameters()]
    wanted = list({id(tensor): tensor for tensor in (*states, *weights) if tensor.requires_grad}.values())
    gradients: Sequence[Tensor | None] = torch.autograd.grad(value, wanted, allow_unused=True)
    of = {id(tensor): gradient for tensor, gradient in zip(wanted, gradients, strict=True) if gradient is not None}

    def norm(tensors: Iterable[Tensor]) -> Tensor:
        squares = [wide(tensor).square().sum() for tensor in tensors]
        return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())

    def state_norm(parts: Iterable[Part], dim: int) -> Tensor:
        return norm(narrowed(part, dim, of[id(part.tensor)]) for part in parts if id(part.tensor) in of)

    def weight_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
        return norm(of[id(parameter)] for parameter in parameters if id(parameter) in of)

    stages = 1 + max(seen.stage for seen in calls)
    steps: dict[str, dict[int, nn.Parameter]] = {}
    for seen in calls:
        inside = steps.setdefault(step_label(seen.stage, seen.step, stages), {})
        inside |= {id(parameter): parameter for parameter in seen.block.parameters()}
    return {
        "block_norms": numbers([weight_norm(seen.block.parameters()) for seen in calls]),
        "activation_norms": numbers([state_norm(seen.parts, seen.dim) for seen in calls]),
        "step_norms": numbers([weight_norm(inside.values()) for inside in steps.values()]),
        "steps": list(steps),
        "block": [seen.number for seen in calls],
        "stage": [seen.stage for seen in calls],
        "loss": float(value.detach()),
    }
