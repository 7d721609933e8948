"""The classes of each vision family: a configuration, and the implementation of vision.py with its name.

A block also is the library's checkpointing layer. The defaults of a configuration are those of one registered model.
The families differ in little, but each needs its own class statements: the Auto classes register them by name, and
remote.py copies them one by one into the file of a saved folder.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers.modeling_layers import GradientCheckpointingLayer

from stepsnet.integrations.transformers.vision import (
    StepsVisionBackbone,
    StepsVisionConfig,
    StepsVisionForImageClassification,
    StepsVisionModel,
)
from stepsnet.models import deit, resnet, swin, swin_plus


class StepsDeiTLayer(GradientCheckpointingLayer, deit.Block):
    pass


class StepsDeiTNetwork(deit.DeiT):
    block = StepsDeiTLayer


class StepsDeiTConfig(StepsVisionConfig):
    model_type: ClassVar[str] = "steps_deit"
    network_class = StepsDeiTNetwork
    own_options = ("patch_size", "head_dim")
    maps_of_blocks = True

    architecture: str = "steps_deit_small"
    plan: str = "192x12, 272x6, 384x6"
    global_pool: str = "token"
    patch_size: int = 16
    head_dim: int | None = None


class StepsDeiTModel(StepsVisionModel):
    config_class = StepsDeiTConfig


class StepsDeiTForImageClassification(StepsVisionForImageClassification):
    config_class = StepsDeiTConfig
    model_class = StepsDeiTModel


class StepsDeiTBackbone(StepsVisionBackbone):
    config_class = StepsDeiTConfig


class StepsSwinLayer(GradientCheckpointingLayer, swin.Block):
    pass


class StepsSwinNetwork(swin.Swin):
    block = StepsSwinLayer


class StepsSwinConfig(StepsVisionConfig):
    model_type: ClassVar[str] = "steps_swin"
    network_class: ClassVar[Any] = StepsSwinNetwork
    own_options = ("patch_size", "window_size", "head_dim")

    architecture: str = "steps_swin_tiny"
    plan: str = "96x2; 192x2; 192x6, 272x3, 384x3; 192x4, 272x2, 384x2, 544x2"
    patch_size: int = 4
    window_size: int = 7
    head_dim: int | None = None


class StepsSwinModel(StepsVisionModel):
    config_class = StepsSwinConfig


class StepsSwinForImageClassification(StepsVisionForImageClassification):
    config_class = StepsSwinConfig
    model_class = StepsSwinModel


class StepsSwinBackbone(StepsVisionBackbone):
    config_class = StepsSwinConfig


class StepsSwinPlusLayer(GradientCheckpointingLayer, swin_plus.Block):
    pass


class StepsSwinPlusNetwork(swin_plus.SwinPlus):
    block = StepsSwinPlusLayer


class StepsSwinPlusConfig(StepsSwinConfig):
    model_type: ClassVar[str] = "steps_swin_plus"
    network_class = StepsSwinPlusNetwork

    architecture: str = "steps_swinpp_tiny"


class StepsSwinPlusModel(StepsVisionModel):
    config_class = StepsSwinPlusConfig


class StepsSwinPlusForImageClassification(StepsVisionForImageClassification):
    config_class = StepsSwinPlusConfig
    model_class = StepsSwinPlusModel


class StepsSwinPlusBackbone(StepsVisionBackbone):
    config_class = StepsSwinPlusConfig


class StepsResNetLayer(GradientCheckpointingLayer, resnet.Block):
    pass


class StepsResNetNetwork(resnet.ResNet):
    block = StepsResNetLayer


class StepsResNetConfig(StepsVisionConfig):
    model_type: ClassVar[str] = "steps_resnet"
    network_class = StepsResNetNetwork
    own_options = ("bottleneck", "stem_stride")

    architecture: str = "steps_resnet34"
    plan: str = "64x2; 128x3; 64x6, 90x3, 128x3, 181x3, 256x2; 64x2, 90x1, 128x1, 181x1, 256x1, 362x1, 512x1"
    bottleneck: bool = False
    stem_stride: int = 4


class StepsResNetModel(StepsVisionModel):
    config_class = StepsResNetConfig


class StepsResNetForImageClassification(StepsVisionForImageClassification):
    config_class = StepsResNetConfig
    model_class = StepsResNetModel


class StepsResNetBackbone(StepsVisionBackbone):
    config_class = StepsResNetConfig
