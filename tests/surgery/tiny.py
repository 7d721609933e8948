"""Tiny models of other libraries with random weights: milliseconds for a forward pass, widths that several steps fit
into."""

from __future__ import annotations

from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn


def vit(**options: Any) -> Any:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4, "num_classes": 5}
    return timm.create_model("vit_small_patch16_224", **{**sizes, **options})


VIT_PLAN = "32x4, 48x2, 64x2"


def llama(**options: Any) -> Any:
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "vocab_size": 40,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **options}))


LLAMA_PLAN = "32x4, 48x2, 64x2"


def gpt2(**options: Any) -> Any:
    sizes = {"n_embd": 96, "n_head": 4, "n_layer": 8, "n_positions": 32, "vocab_size": 40, "bos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**sizes, "eos_token_id": 2, **options}))


def tokens(length: int = 6, batch: int = 2, vocabulary: int = 40) -> Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def stir(model: nn.Module) -> nn.Module:
    """Random values wherever an initialisation leaves a one or a zero, so that no part of a model is hidden."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() and parameter.std(correction=0) == 0:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.2)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    return model
