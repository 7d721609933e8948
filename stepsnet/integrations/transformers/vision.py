"""Vision models: configuration and classes, with the networks of stepsnet behind the library's interface.

One implementation serves all families. A family adds its configuration, which names its network.
Legend: B batch, C channels, H and W the sides of a map.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
from transformers.modeling_outputs import (
    BackboneOutput,
    BaseModelOutputWithPoolingAndNoAttention,
    ImageClassifierOutput,
)

from stepsnet.blocks.layers import linear
from stepsnet.integrations.transformers.native import NativeConfig, PortableModel
from stepsnet.macro import StepPlan
from stepsnet.models.design import Design
from stepsnet.models.vision import STEM, VisionModel


class StepsVisionConfig(NativeConfig, BackboneConfigMixin, PreTrainedConfig):
    """A plan and its options. `architecture` is the registered name, which files of stepsnet contain.

    The maps of a backbone are "stem", then "stage1" and so on: one per stage, or in DeiT one per block.
    """

    own_options: ClassVar[tuple[str, ...]]
    """Fields of the family that are arguments of its network."""
    maps_of_blocks: ClassVar[bool] = False
    attribute_map: ClassVar[dict[str, str]] = {"img_size": "image_size", "in_chans": "num_channels"}

    architecture: str
    plan: str
    join: str = "plain"
    macro: str = "steps"
    residual: str = "plain"
    drop_path_rate: float = 0.0
    drop_rate: float = 0.0
    image_size: int | list[int] | tuple[int, ...] = 224
    num_channels: int = 3
    global_pool: str = "avg"

    def __post_init__(self, **others: Any) -> None:
        for derived in ("stage_names", "num_hidden_layers", "hidden_size", "depths"):
            others.pop(derived, None)
        plans = self.plans()
        self.num_hidden_layers = sum(plan.blocks for plan in plans)
        self.hidden_size = plans[-1].width * (4 if getattr(self, "bottleneck", False) else 1)
        if not self.maps_of_blocks:
            self.depths = [plan.blocks for plan in plans]  # the library takes one map per entry, or else per block
        maps = self.num_hidden_layers if self.maps_of_blocks else len(plans)
        self.stage_names = ["stem", *(f"stage{number}" for number in range(1, maps + 1))]
        self.set_output_features_output_indices(others.pop("out_features", None), others.pop("out_indices", None))
        super().__post_init__(**others)  # type: ignore[no-untyped-call]

    def plans(self) -> list[StepPlan]:
        """One plan per stage."""
        return [StepPlan.parse(stage) for stage in self.plan.split(";")]

    def options(self) -> dict[str, Any]:
        """Arguments of `create_model` besides the name."""
        plans = self.plans()
        depths = [plan.blocks for plan in plans]
        keys = ("plan", "join", "macro", "residual", "drop_path_rate", "drop_rate", "global_pool")
        return {
            **{key: getattr(self, key) for key in (*keys, *self.own_options)},
            "img_size": self.image_size,
            "in_chans": self.num_channels,
            **({"depth": depths[0]} if self.maps_of_blocks else {"depths": depths}),
            "embed_dim": plans[0].width,
            "num_classes": self.num_labels,
        }

    def build(self) -> VisionModel:
        """A new network without a classifier."""
        options = self.options() | {"num_classes": 0}
        parts = {key: options.pop(key) for key in ("plan", "join", "macro", "residual")}
        return self.network_class(design=Design(**parts, drop_path=options.pop("drop_path_rate")), **options)


class StepsVisionPreTrainedModel(PortableModel, PreTrainedModel):
    """Common base of the models below."""

    config: StepsVisionConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True
    _no_split_modules = ["StepsDeiTLayer", "StepsSwinLayer", "StepsSwinPlusLayer", "StepsResNetLayer"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Our modules initialise themselves; the library skips loaded weights."""
        network = cast(VisionModel, getattr(self, "network", None) or cast(StepsVisionModel, self.model).network)
        if module is network:
            network.init_own_parameters()
        elif isinstance(module, nn.BatchNorm2d):
            super()._init_weights(module)  # type: ignore[no-untyped-call]  # it also skips loaded statistics
            for branch in network.modules():  # the library does not call this for modules without own parameters
                if hasattr(branch, "start_at_zero") and module in branch.children():
                    branch.start_at_zero()  # type: ignore[operator]
        elif callable(getattr(module, "reset_parameters", None)):
            network.reset_layer(module)


def maps_of(network: VisionModel) -> list[int]:
    """What the maps "stem", "stage1", "stage2" … are in `network.intermediates`."""
    stages = [index for index, info in enumerate(network.feature_info) if not info["module"].startswith("stem")]
    return [STEM, *stages]


class StepsVisionModel(StepsVisionPreTrainedModel):
    """Images to hidden states: the last map as the network has it, and its pooled vector."""

    def __init__(self, config: StepsVisionConfig) -> None:
        super().__init__(config)
        self.network = config.build()
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, pixel_values: Tensor | None = None, output_hidden_states: bool | None = None,
        return_dict: bool | None = None, **_others: Any,
    ) -> BaseModelOutputWithPoolingAndNoAttention | tuple[Any, ...]:
        if pixel_values is None:
            raise ValueError("You have to specify pixel_values")
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if wants_states:
            last, states = self.network.intermediates(pixel_values, maps_of(self.network))
        else:
            last, states = self.network.forward_features(pixel_values), []
        pooled = self.network.forward_head(last, pre_logits=True)
        output = BaseModelOutputWithPoolingAndNoAttention(
            last_hidden_state=last, pooler_output=pooled, hidden_states=tuple(states) if wants_states else None,  # type: ignore[arg-type]  # the library declares FloatTensor
        )  # fmt: skip
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


class StepsVisionForImageClassification(StepsVisionPreTrainedModel):
    """Images to class logits."""

    model_class: ClassVar[type[StepsVisionModel]]

    def __init__(self, config: StepsVisionConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.model_class(config)
        self.classifier = linear(config.hidden_size, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None,
        output_hidden_states: bool | None = None, return_dict: bool | None = None, **others: Any,
    ) -> ImageClassifierOutput | tuple[Any, ...]:
        found = self.model(pixel_values, output_hidden_states=output_hidden_states, return_dict=True)
        logits = self.classifier(found.pooler_output)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **others)
        output = ImageClassifierOutput(loss=loss, logits=logits, hidden_states=found.hidden_states)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


class StepsVisionBackbone(BackboneMixin, StepsVisionPreTrainedModel):
    """Images to the maps that `config.out_features` names. Modules that no map needs are removed."""

    has_attentions = False

    def __init__(self, config: StepsVisionConfig) -> None:
        super().__init__(config)
        self.network = config.build()
        stem = next(module for module in self.network.modules() if isinstance(module, nn.Conv2d))
        self.maps = maps_of(self.network)
        self.num_features = [
            stem.out_channels, *(self.network.feature_info[index]["num_chs"] for index in self.maps[1:])
        ]  # fmt: skip
        self.network.prune_intermediate_layers([self.maps[max(self.positions()[-1], 1)]], prune_norm=True)
        self.post_init()  # type: ignore[no-untyped-call]

    def positions(self) -> list[int]:
        """Positions of the maps among `stage_names`."""
        return [self.stage_names.index(name) for name in self.out_features]

    def forward(
        self, pixel_values: Tensor, output_hidden_states: bool | None = None, output_attentions: bool | None = None,  # noqa: ARG002
        return_dict: bool | None = None, **_others: Any,
    ) -> BackboneOutput | tuple[Any, ...]:
        positions = self.positions()
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        computed = list(range(positions[-1] + 1)) if wants_states else positions
        _, maps = self.network.intermediates(pixel_values, [self.maps[position] for position in computed])
        chosen: Any = tuple(found for position, found in zip(computed, maps, strict=True) if position in positions)
        states: Any = tuple(maps) if wants_states else None
        output = BackboneOutput(feature_maps=chosen, hidden_states=states)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()
