"""Small models for the tests of this folder."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from stepsnet.integrations.transformers import StepsTransformerConfig, StepsTransformerForCausalLM

NAMES = ("test_transformer", "test_steps_transformer")


def make_config(name: str = "test_steps_transformer", **options: Any) -> StepsTransformerConfig:
    return StepsTransformerConfig.from_name(name, **options)


def make_model(
    name: str = "test_steps_transformer", attention: str = "sdpa", **options: Any
) -> StepsTransformerForCausalLM:
    """A model whose logits differ clearly between tokens, unlike those of a new model."""
    torch.manual_seed(0)
    model = (
        cast(Any, StepsTransformerForCausalLM)
        ._from_config(make_config(name, **options), attn_implementation=attention)
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.2)
    return cast(StepsTransformerForCausalLM, model)


def make_ids(rows: int = 2, length: int = 12) -> Tensor:
    return torch.randint(1, 256, (rows, length), generator=torch.Generator().manual_seed(1))


def write(model: StepsTransformerForCausalLM, ids: Tensor | None, **options: Any) -> Any:
    """Greedy `generate` with eight new tokens."""
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, **options}
    return cast(Any, model).generate(ids, **settings)
