"""Our backbones as transformers knows backbones: registered, so that its models build on them by their configuration."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoBackbone, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
from transformers.modeling_outputs import BackboneOutput


class StepsNetBackboneConfig(BackboneConfigMixin, PreTrainedConfig):
    """Which model it is, the channels of its maps, and how many pixels one step of each spans."""

    model_type = "stepsnet_backbone"

    def __init__(self, architecture: str = "", channels: list[int] | None = None, steps: list[int] | None = None, **options: Any) -> None:
        self.architecture = architecture
        self.map_channels = list(channels or [])
        self.steps = list(steps or [])
        self.stage_names = [f"stage{index + 1}" for index in range(len(self.map_channels))]
        super().__init__(**options)
        self.set_output_features_output_indices(list(self.stage_names), None)


class StepsNetBackbone(BackboneMixin, PreTrainedModel):
    """Maps for transformers' heads. Made empty from its configuration; `maps` is put in afterwards, with the weights it has."""

    config_class = StepsNetBackboneConfig
    main_input_name = "pixel_values"
    has_attentions = False
    maps: nn.Module

    def __init__(self, config: StepsNetBackboneConfig) -> None:
        super().__init__(config)
        self.num_features = list(config.map_channels)
        self.steps = list(config.steps)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Our modules start themselves."""

    def forward(
        self,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,  # noqa: ARG002  (the library's signature)
        output_attentions: bool | None = None,  # noqa: ARG002
        return_dict: bool | None = None,  # noqa: ARG002
    ) -> BackboneOutput:
        return BackboneOutput(feature_maps=tuple(self.maps(pixel_values)))


AutoConfig.register(StepsNetBackboneConfig.model_type, StepsNetBackboneConfig, exist_ok=True)
AutoBackbone.register(StepsNetBackboneConfig, StepsNetBackbone, exist_ok=True)
