"""The classes by family and their registration with the Auto classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BitImageProcessor,
    BitImageProcessorPil,
)

from stepsnet.integrations.transformers import families
from stepsnet.integrations.transformers.language import (
    StepsTransformerConfig,
    StepsTransformerForCausalLM,
    StepsTransformerForSequenceClassification,
    StepsTransformerForTokenClassification,
    StepsTransformerModel,
)
from stepsnet.integrations.transformers.vision import StepsVisionConfig


@dataclass(frozen=True)
class Family:
    """A configuration and the model of each Auto class. `main` is the model that native ones become."""

    config: type[Any]
    models: dict[Any, Any]
    main: type[Any]

    def register(self) -> None:
        AutoConfig.register(self.config.model_type, self.config, exist_ok=True)
        for auto, model in self.models.items():
            auto.register(self.config, model, exist_ok=True)
        if issubclass(self.config, StepsVisionConfig):
            processors: dict[str, type] = {"pil": BitImageProcessorPil, "torchvision": BitImageProcessor}
            AutoImageProcessor.register(self.config, image_processor_classes=processors, exist_ok=True)

    @property
    def auto_map(self) -> dict[str, type]:
        """Auto classes by name, as in config.json."""
        return {"AutoConfig": self.config, **{auto.__name__: model for auto, model in self.models.items()}}


def _vision(name: str) -> Family:
    found = {part: getattr(families, f"Steps{name}{part}") for part in ("Model", "ForImageClassification", "Backbone")}
    autos = (AutoModel, AutoModelForImageClassification, AutoBackbone)
    models = dict(zip(autos, found.values(), strict=True))
    return Family(getattr(families, f"Steps{name}Config"), models, found["ForImageClassification"])


FAMILIES: dict[str, Family] = {
    "transformer": Family(
        StepsTransformerConfig,
        {
            AutoModel: StepsTransformerModel,
            AutoModelForCausalLM: StepsTransformerForCausalLM,
            AutoModelForSequenceClassification: StepsTransformerForSequenceClassification,
            AutoModelForTokenClassification: StepsTransformerForTokenClassification,
        },
        StepsTransformerForCausalLM,
    ),
    "deit": _vision("DeiT"),
    "swin": _vision("Swin"),
    "swinpp": _vision("SwinPlus"),
    "resnet": _vision("ResNet"),
}
"""By the family of the native model."""
