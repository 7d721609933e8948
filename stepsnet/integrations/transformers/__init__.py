"""Models of stepsnet as models of the transformers library.

Importing this module (also as `stepsnet.transformers`) registers them with the Auto classes, so that `from_pretrained`
of the Auto classes reads saved folders. The networks are the same as those of `create_model`, with the library's cache,
masks, losses, generation and backbones.

    from stepsnet.transformers import StepsDeiTConfig, StepsDeiTForImageClassification, from_run

    model = StepsDeiTForImageClassification(StepsDeiTConfig.from_name("steps_deit_small"))
    model, tokenizer = from_run("runs/wikitext103-steps_transformer_30m-1")        # a run of `stepsnet train`
"""

from __future__ import annotations

from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision_if_installed

require("transformers", extra="transformers")
import_torchvision_if_installed()

from stepsnet.integrations.transformers.auto import FAMILIES  # noqa: E402
from stepsnet.integrations.transformers.conversion import (  # noqa: E402
    from_run,
    from_stepsnet,
    make_image_processor,
    make_tokenizer,
    to_stepsnet,
)
from stepsnet.integrations.transformers.families import (  # noqa: E402
    StepsDeiTBackbone,
    StepsDeiTConfig,
    StepsDeiTForImageClassification,
    StepsDeiTModel,
    StepsResNetBackbone,
    StepsResNetConfig,
    StepsResNetForImageClassification,
    StepsResNetModel,
    StepsSwinBackbone,
    StepsSwinConfig,
    StepsSwinForImageClassification,
    StepsSwinModel,
    StepsSwinPlusBackbone,
    StepsSwinPlusConfig,
    StepsSwinPlusForImageClassification,
    StepsSwinPlusModel,
)
from stepsnet.integrations.transformers.language import (  # noqa: E402
    StepsTransformerConfig,
    StepsTransformerForCausalLM,
    StepsTransformerForSequenceClassification,
    StepsTransformerForTokenClassification,
    StepsTransformerModel,
)

for _family in FAMILIES.values():
    _family.register()

__all__ = [
    "StepsDeiTBackbone",
    "StepsDeiTConfig",
    "StepsDeiTForImageClassification",
    "StepsDeiTModel",
    "StepsResNetBackbone",
    "StepsResNetConfig",
    "StepsResNetForImageClassification",
    "StepsResNetModel",
    "StepsSwinBackbone",
    "StepsSwinConfig",
    "StepsSwinForImageClassification",
    "StepsSwinModel",
    "StepsSwinPlusBackbone",
    "StepsSwinPlusConfig",
    "StepsSwinPlusForImageClassification",
    "StepsSwinPlusModel",
    "StepsTransformerConfig",
    "StepsTransformerForCausalLM",
    "StepsTransformerForSequenceClassification",
    "StepsTransformerForTokenClassification",
    "StepsTransformerModel",
    "from_run",
    "from_stepsnet",
    "make_image_processor",
    "make_tokenizer",
    "to_stepsnet",
]
