"""What every model of the zoo offers, and what vision models offer besides: the face timm users know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.blocks.linear import Linear
from stepsnet.blocks.residual import Place, Residual
from stepsnet.cost import Cost
from stepsnet.errors import UsageError
from stepsnet.families.plans import format_plans
from stepsnet.macro import ReverseStepsNet, Stack, StepPlan, StepsNet, build_network

Join = str | nn.Module | Sequence[str | nn.Module]
ResidualDesign = Callable[[nn.Module, nn.Module, Place], nn.Module]
Net = StepsNet | ReverseStepsNet


@dataclass(frozen=True)
class Macro:
    """The choices around the plan that every family passes to its networks."""

    join: Join = "plain"
    kind: str = "steps"
    residual: ResidualDesign = Residual


class Depth:
    """Hands out places along the whole depth, stage after stage, so that stochastic depth grows from the first block to the last."""

    def __init__(self, blocks: int, drop_path_rate: float) -> None:
        self.blocks = blocks
        self.rate = drop_path_rate
        self.taken = 0

    def next(self, width: int, position: int) -> Place:
        index = self.taken
        self.taken += 1
        return Place(width, position, index, self.blocks, self.rate * index / max(self.blocks - 1, 1))


def build_stage(plan: StepPlan, make_block: Callable[[Place], nn.Module], depth: Depth, macro: Macro, channel_dim: int = -1, expansion: int = 1) -> Net:
    """The network of one stage: `make_block(place)` is called along the execution, places counted through the stage."""
    position = 0

    def make_stack(width: int, blocks: int) -> Stack:
        nonlocal position
        places = [depth.next(width, position + i) for i in range(blocks)]
        position += blocks
        enter, leave = getattr(macro.residual, "frame", lambda width: (None, None))(width * expansion)
        return Stack([make_block(place) for place in places], enter, leave)

    return build_network(plan, make_stack, macro=macro.kind, join=macro.join, channel_dim=channel_dim, expansion=expansion)


class Model(nn.Module, ABC):
    """A network of the zoo. `plans` holds one plan per stage, `input_size` the shape of one input, `default_cfg` what it was made from."""

    family: str
    plans: tuple[StepPlan, ...]
    input_size: tuple[int, ...]
    default_cfg: dict[str, Any]

    @property
    def plan(self) -> str:
        return format_plans(self.plans)

    def nets(self) -> list[Net]:
        """The macro networks, stage by stage."""
        return [module for module in self.modules() if isinstance(module, (StepsNet, ReverseStepsNet))]

    def blocks_in_order(self) -> list[nn.Module]:
        """All residual blocks in the order of execution."""
        return [block for stack in self.modules() if isinstance(stack, Stack) for block in stack.blocks]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        for module in self.modules():
            if isinstance(module, Stack):
                module.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay should leave alone, besides biases and norms."""
        return set()

    def stem_names(self) -> tuple[str, ...]:
        """Prefixes of the parameters before the first block, layer 0 of layer-wise learning-rate decay."""
        return ()

    def init_own_parameters(self) -> None:
        """Parameters the model holds itself (tokens, positions); its submodules start themselves."""

    def reset_parameters(self) -> None:
        """Start over, every submodule its own way; fills a model that was made on the meta device."""
        for module in self.modules():
            if module is not self and callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        self.init_own_parameters()

    @abstractmethod
    def closed_form(self, input_size: tuple[int, ...] | None = None) -> Cost:
        """What the model costs, by formula; without an input size, at its own."""

    @abstractmethod
    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        """One input on the meta device, for counting and tracing."""


@dataclass(frozen=True)
class Feature:
    """One of the maps a backbone offers: where it comes from, its channels, and how many pixels of the picture one step of it spans."""

    module: str
    num_chs: int
    reduction: int


class VisionModel(Model):
    """A picture classifier that is also a backbone. Families provide the stem, the stages and the costs."""

    feature_info: list[dict[str, Any]]
    num_features: int
    num_classes: int
    global_pool: str
    head: nn.Module
    pools: tuple[str, ...] = ("avg", "max", "")

    def set_features(self, features: Iterable[Feature]) -> None:
        self.feature_info = [{**asdict(feature), "index": index} for index, feature in enumerate(features)]

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for other classes; with 0 classes the model returns its pooled features."""
        if global_pool is not None:
            if global_pool not in self.pools:
                raise UsageError(f"{type(self).__name__} pools by {', '.join(repr(p) for p in self.pools)}, not by '{global_pool}'")
            self.global_pool = global_pool
        self.num_classes = num_classes
        device = next(iter(self.parameters())).device
        self.head = Linear(self.num_features, num_classes, device=device) if num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        """The last map, normalised, before pooling."""
        return self.intermediates(x, ())[0]

    @abstractmethod
    def pool(self, x: Tensor) -> Tensor:
        """One vector a picture from the last map, as `global_pool` says."""

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.pool(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    @abstractmethod
    def intermediates(self, x: Tensor, indices: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The last map and the wanted ones on the way to it, these as (B, C, H, W); indices count `feature_info`."""

    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, *, intermediates_only: bool = False
    ) -> Any:
        """Timm's call: (last map, [maps (B, C, H, W)]), or the list alone. `indices` counts `feature_info`; a number means the last ones; None all."""
        wanted = self.check_indices(indices)
        last, maps = self.intermediates(x, wanted)
        return maps if intermediates_only else (last, maps)

    def check_indices(self, indices: int | Sequence[int] | None) -> list[int]:
        count = len(self.feature_info)
        chosen = range(count) if indices is None else range(count - indices, count) if isinstance(indices, int) else indices
        wanted = [index + count if index < 0 else index for index in chosen]
        if any(not 0 <= index < count for index in wanted) or wanted != sorted(set(wanted)):
            raise UsageError(f"out_indices {list(chosen)} must name growing features 0 … {count - 1} of {type(self).__name__}")
        return wanted

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.empty(1, *(input_size or self.input_size), device="meta")


class FeatureBackbone(nn.Module):
    """`features_only`: a picture in, a list of maps (B, C, H, W) out, for detection and segmentation."""

    def __init__(self, model: VisionModel, out_indices: Sequence[int] | int | None) -> None:
        super().__init__()
        self.out_indices = model.check_indices(out_indices)
        model.reset_classifier(0)
        self.model = model
        self.feature_info = [model.feature_info[index] for index in self.out_indices]
        self.default_cfg = model.default_cfg

    @property
    def channels(self) -> list[int]:
        return [info["num_chs"] for info in self.feature_info]

    @property
    def reductions(self) -> list[int]:
        return [info["reduction"] for info in self.feature_info]

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.model.intermediates(x, self.out_indices)[1]


def layer_ids(model: Model) -> dict[str, int]:
    """The layer each parameter belongs to for layer-wise learning-rate decay: 0 the stem, then block by block, last the head.

    What stands between stages (patch merging, downsampling blocks) belongs to the block that follows it.
    """
    blocks = {id(block): index for index, block in enumerate(model.blocks_in_order(), start=1)}
    owner: dict[str, int] = {}
    for name, module in model.named_modules():
        if id(module) in blocks:
            owner[name + "."] = blocks[id(module)]
    last = len(blocks) + 1
    ids: dict[str, int] = {}
    current = 0
    for name, _ in model.named_parameters():
        if name.startswith(model.stem_names()):
            ids[name] = 0
            continue
        inside = [index for prefix, index in owner.items() if name.startswith(prefix)]
        if inside:
            current = inside[0]
            ids[name] = current
        else:
            behind = name.split(".")[0] in ("norm", "head")
            ids[name] = last if behind else current + 1
    return ids
