"""Between the library's models and ours, without loss: the tensors are the same ones under other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from stepsnet.data.text.vocabulary import SEPARATOR, BpeVocabulary, ByteVocabulary, Vocabulary, byte_characters
from stepsnet.errors import UsageError
from stepsnet.integrations.transformers.configuration import StepsTransformerConfig
from stepsnet.integrations.transformers.modeling import StepsTransformerForCausalLM
from stepsnet.models.language import Transformer
from stepsnet.optional import require


def from_stepsnet(model: Transformer, vocabulary: Vocabulary | None = None) -> StepsTransformerForCausalLM:
    """The library's model with a copy of our model's weights; the vocabulary says which token ends a text."""
    separator = vocabulary.separator if vocabulary else None
    config = StepsTransformerConfig.from_model(model, bos_token_id=separator, eos_token_id=separator, dtype=_dtype(model))
    converted = StepsTransformerForCausalLM(config)
    nn.Module.to(converted, dtype=_dtype(model))  # the library wraps the method and loses its signature
    converted.model.network.load_state_dict(model.state_dict())
    converted.tie_weights()
    converted.train(model.training)
    return converted


def to_stepsnet(model: StepsTransformerForCausalLM) -> Transformer:
    """Our model with a copy of the library's model's weights; `save_model` writes it as a run's weights.safetensors."""
    if not model.config.tie_word_embeddings:
        raise UsageError("stepsnet's language models have one embedding for both ends; this model's head has weights of its own.")
    network = model.model.network
    converted = model.config.build(device="cpu").to(_dtype(network))
    converted.load_state_dict(network.state_dict())
    converted.train(model.training)
    return converted


def from_run(folder: str | Path, *, ema: bool = False) -> tuple[StepsTransformerForCausalLM, Any]:
    """Model and tokenizer of a run of `stepsnet train`, ready for `save_pretrained`."""
    from stepsnet.data.text.trained import load_language_run

    model, vocabulary = load_language_run(Path(folder), ema=ema)
    assert isinstance(model, Transformer)
    tokenizer = make_tokenizer(vocabulary)
    (tokenizer.model_max_length,) = model.input_size
    return from_stepsnet(model, vocabulary), tokenizer


def make_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The library's tokenizer for a vocabulary of ours: equal text gives equal tokens.

    Short texts of a batch are padded on the left, as generation needs it. A BPE pads with its separator; bytes have no token to
    spare, so they pad with the newline, which the mask hides.
    """
    library = require("tokenizers", extra="text")
    if isinstance(vocabulary, BpeVocabulary):
        tokenizer = library.Tokenizer.from_str(vocabulary.content)
        special = {"bos_token": SEPARATOR, "eos_token": SEPARATOR, "pad_token": SEPARATOR} if vocabulary.separator is not None else {}
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)
    assert isinstance(vocabulary, ByteVocabulary)
    tokenizer = library.Tokenizer(library.models.BPE(vocab=byte_characters(), merges=[]))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    newline = next(character for character, value in byte_characters().items() if value == ord("\n"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", pad_token=newline)


def _dtype(model: nn.Module) -> torch.dtype:
    return next(iter(model.parameters())).dtype
