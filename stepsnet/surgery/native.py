"""Models of this package as hosts of deepen. Each step counts as a stage.

New blocks join the step with the most blocks, or the one that ";" selects.

The deepened model is again a model of this package, with a longer plan, which `save_model` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stepsnet.blocks.attention import CausalAttention
from stepsnet.blocks.designs import InjectedStack
from stepsnet.blocks.residual import LayerNormScaling
from stepsnet.errors import UsageError
from stepsnet.macro import Stack, StepPlan, StepsNet
from stepsnet.models import Model, create_model
from stepsnet.models.design import format_plans
from stepsnet.models.vision import FeatureInfo, VisionModel
from stepsnet.surgery.hosts import Host, Stage


class NativeHost(Host):
    library = "stepsnet"

    def __init__(self, model: Model) -> None:
        if len(model.plans) > 1 or not isinstance(model.nets()[0], StepsNet):
            what = "of the models of this package, deepen takes DeiT and language models"
            raise UsageError(f"{what}, not {type(model).__name__}; make a deeper one with create_model(…, plan=…)")
        if not model.default_cfg:
            raise UsageError(f"deepen makes blocks with create_model, which did not make this {type(model).__name__}")
        if any(isinstance(module, (LayerNormScaling, InjectedStack)) for module in model.modules()):
            raise UsageError("deepen cannot add blocks to a model whose residual is layernorm_scaling or x0_injection")
        if 0 in model.plans[0].depths:
            raise UsageError(f"deepen takes models whose steps all have blocks, not the plan '{model.plan}'")
        self.native = model
        super().__init__(model, (torch.zeros_like(model.dummy_input(), device="cpu"),))

    def find_stages(self, paths: Sequence[str] | None, channel_dim: int | None) -> tuple[Stage, ...]:  # noqa: ARG002
        (net,) = self.native.nets()
        stacks = [(name, module) for name, module in self.native.named_modules() if isinstance(module, Stack)]
        return tuple(
            Stage(f"{name}.blocks", 0, len(stack.blocks), width, net.channel_dim)
            for (name, stack), width in zip(stacks, net.widths, strict=True)
        )

    @staticmethod
    def format_plans(plans: Sequence[StepPlan]) -> str:
        """One stage, whose steps are the `stages` of this host."""
        return ", ".join(map(str, plans))

    def check_width(self, width: int, stage: int) -> None:
        own = self.stages[stage].width
        if width != own:
            widths = ", ".join(str(each.width) for each in self.stages)
            blocks = self.new_blocks(stage)
            how = f"'{blocks}' adds two blocks to step {stage + 1}, of width {own}; ';' separates the steps"
            raise UsageError(f"a new block must have the width of its step ({widths}), not {width}: {how}")

    def make_block(self, width: int, index: int, stage: int = 0) -> nn.Module:
        donor = create_model(self.native.default_cfg["architecture"], **self._options(self._plan()))
        position = sum(each.depth for each in self.stages[:stage]) + min(index, self.stages[stage].depth - 1)
        assert width == self.stages[stage].width
        return donor.blocks_in_order()[position]

    def settle(self, depths: Sequence[int]) -> None:  # noqa: ARG002
        self.restore(self.native, {"plan": str(self._plan())})

    def bookkeeping(self) -> dict[str, Any]:
        return {"plan": str(self._plan())}

    @staticmethod
    def restore(model: nn.Module, bookkeeping: Mapping[str, Any]) -> None:
        """The plan, the list of features and the place of each attention in the cache follow the blocks."""
        assert isinstance(model, Model)
        model.plans = (StepPlan.parse(bookkeeping["plan"]),)
        model.default_cfg["options"] = {**model.default_cfg["options"], "plan": format_plans(model.plans)}
        caching = (module for module in model.modules() if isinstance(module, CausalAttention))
        for number, attention in enumerate(caching):
            attention.layer_idx = number
        if isinstance(model, VisionModel):
            names = {module: name for name, module in model.named_modules()}
            stride = model.feature_info[0]["reduction"]
            model.feature_info = FeatureInfo.of(
                (names[block], model.num_features, stride) for block in model.blocks_in_order()
            )

    def _plan(self) -> StepPlan:
        return StepPlan(tuple(each.width for each in self.stages), tuple(each.depth for each in self.stages))

    def _options(self, plan: StepPlan) -> dict[str, Any]:
        return {**self.native.default_cfg["options"], **self.native.changed_options(), "plan": str(plan)}
