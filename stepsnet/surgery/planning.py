"""`stepsnet.plan`: the best plan for a budget, for registered models and for models of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.integrations.foreign import is_foreign, load_foreign
from stepsnet.macro import StepPlan
from stepsnet.models import Model
from stepsnet.planner import Budget, PlanResult, Subject, ZooSubject, plan_for
from stepsnet.surgery.hosts import Host
from stepsnet.surgery.stepify import find_host, make_blocks, resolve


def plan(
    model: str | nn.Module,
    *,
    options: Mapping[str, Any] | None = None,
    tick: Callable[[int, int], None] = lambda _done, _total: None,
    **budget: Unpack[Budget],
) -> PlanResult:
    """The best plan for `model` within budgets: a registered name, "timm:NAME", "hf:TYPE_OR_FOLDER", or a
    model of another library.

    `params=` and `macs=` are hard limits: numbers or texts such as "22M" and "4.6G". `latency=`, as "10ms@batch1", is a
    limit of the latency that is predicted from single blocks measured on this CPU. A budget that is not given is the
    model's own: at most 1.05 times its parameters and 1.03 times its MACs; latency is free. `blocks=` is the depth,
    "max" the deepest plan that fits; by default twice the depth of the plain network, as in the paper. `steps=` fixes
    the number of steps. `options` are those of `stepify` for models of other
    libraries (heads, blocks, make_block, example, options). `tick` is called while latencies are measured.
    """
    return plan_for(_subject(model, dict(options or {})), tick=tick, **budget)


def _subject(model: str | nn.Module, options: dict[str, Any]) -> Subject:
    if isinstance(model, str) and not is_foreign(model):
        return ZooSubject(model)
    if isinstance(model, str):
        loaded = load_foreign(model, with_head=True)
        return HostSubject(loaded.model, loaded.name, options)
    if isinstance(model, Model):
        raise UsageError(f"{type(model).__name__} is a model of this package: plan its name, such as 'deit_small'.")
    return HostSubject(model, type(model).__name__, options)


class HostSubject:
    """A model of another library. It is copied for every plan; the original stays as it is."""

    def __init__(self, model: nn.Module, name: str, options: dict[str, Any]) -> None:
        self.name, self.model, self.options = name, model, options
        self.host = find_host(model, **options)
        self.plain = tuple(StepPlan.residual(stage.width, stage.depth) for stage in self.host.stages)
        self._hosts: WeakKeyDictionary[nn.Module, Host] = WeakKeyDictionary()

    def widths(self, stage: int) -> Sequence[int]:
        """Multiples of the host's unit, a fourth root of 2 apart: a donor has to be built for each of them."""
        unit, width = self.unit(stage), self.plain[stage].width
        return sorted({width, *(unit * max(1, round(width / unit / 2 ** (k / 4))) for k in range(1, 13))})

    def unit(self, stage: int) -> int:
        return self.host.unit(stage)

    def build(self, plan: str, device: str) -> nn.Module:
        weights = self.model.parameters()  # each is copied once, so that tied ones stay tied
        memo = {id(weight): nn.Parameter(weight.detach().to(device), weight.requires_grad) for weight in weights}
        model = deepcopy(self.model, memo).to(device).eval()
        host = find_host(model, **self.options)
        with torch.device(device):
            host.exchange(make_blocks(host, resolve(host, plan), "plain"))
        self._hosts[model] = host
        return model

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        host = self._hosts[model]
        return [block for stage in range(len(host.stages)) for block in host.blocks(stage)]

    def inputs(self, model: nn.Module, batch: int, device: str) -> tuple[Any, ...]:  # noqa: ARG002
        def like(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return torch.zeros((batch, *value.shape[1:]), dtype=value.dtype, device=device)

        return tuple(like(value) for value in self.host.example)
