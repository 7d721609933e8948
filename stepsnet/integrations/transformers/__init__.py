"""Language models of stepsnet as models of the transformers library.

Importing this module registers them with the Auto classes, so that `AutoModelForCausalLM.from_pretrained` reads saved
folders. The network is the same `Transformer`, with the library's cache, masks, losses and generation.

    from stepsnet.integrations.transformers import StepsTransformerConfig, StepsTransformerForCausalLM

    model = StepsTransformerForCausalLM(StepsTransformerConfig.from_name("steps_transformer_30m"))
    model, tokenizer = from_run("runs/wikitext103-steps_transformer_30m-1")        # a run of `stepsnet train`
"""

from __future__ import annotations

from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision_if_installed

require("transformers", extra="transformers")
import_torchvision_if_installed()

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM  # noqa: E402

from stepsnet.integrations.transformers.conversion import from_run, from_stepsnet, make_tokenizer, to_stepsnet  # noqa: E402
from stepsnet.integrations.transformers.modeling import (  # noqa: E402
    StepsTransformerConfig,
    StepsTransformerForCausalLM,
    StepsTransformerModel,
)

AutoConfig.register(StepsTransformerConfig.model_type, StepsTransformerConfig, exist_ok=True)
AutoModel.register(StepsTransformerConfig, StepsTransformerModel, exist_ok=True)
AutoModelForCausalLM.register(StepsTransformerConfig, StepsTransformerForCausalLM, exist_ok=True)

__all__ = [
    "StepsTransformerConfig",
    "StepsTransformerForCausalLM",
    "StepsTransformerModel",
    "from_run",
    "from_stepsnet",
    "make_tokenizer",
    "to_stepsnet",
]
