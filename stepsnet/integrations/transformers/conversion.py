"""Lossless conversion between the library's models and ours, and tokenizers for our vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from stepsnet.data.text.vocabulary import SEPARATOR, BpeVocabulary, ByteVocabulary, Vocabulary, byte_characters
from stepsnet.errors import UsageError
from stepsnet.integrations.transformers.modeling import StepsTransformerConfig, StepsTransformerForCausalLM
from stepsnet.models.language import Transformer
from stepsnet.optional import require

BYTE_END, BYTE_PAD = 0xFE, 0xFF
"""Special tokens of byte models. No UTF-8 text contains these two bytes, so the vocabulary stays at 256 tokens."""
PADDING = "<|pad|>"


def from_stepsnet(model: Transformer, vocabulary: Vocabulary | None = None) -> StepsTransformerForCausalLM:
    """The library's model with a copy of our weights. The vocabulary decides the special tokens."""
    special: dict[str, Any] = {}
    if isinstance(vocabulary, ByteVocabulary):
        special = {"bos_token_id": BYTE_END, "eos_token_id": BYTE_END, "pad_token_id": BYTE_PAD}
    elif vocabulary is not None:
        special = {"bos_token_id": vocabulary.separator, "eos_token_id": vocabulary.separator}
    config = StepsTransformerConfig.from_model(model, dtype=_dtype(model), **special)
    converted = StepsTransformerForCausalLM(config)
    nn.Module.to(converted, dtype=_dtype(model))  # the library's wrapper has lost the type signature
    converted.model.network.load_state_dict(model.state_dict())
    converted.tie_weights()
    converted.train(model.training)
    return converted


def to_stepsnet(model: StepsTransformerForCausalLM) -> Transformer:
    """Our model with a copy of the library's weights; `save_model` writes it to a file."""
    if not model.config.tie_word_embeddings:
        raise UsageError("stepsnet's language models share one embedding between input and head; this model does not.")
    network = model.model.network
    converted = model.config.build(device="cpu").to(_dtype(network))
    converted.load_state_dict(network.state_dict())
    converted.train(model.training)
    return converted


def from_run(folder: str | Path, *, ema: bool = False) -> tuple[StepsTransformerForCausalLM, Any]:
    """Model and tokenizer of a run folder, ready for `save_pretrained`."""
    from stepsnet.data.text.trained import load_language_run

    model, vocabulary = load_language_run(Path(folder), ema=ema)
    assert isinstance(model, Transformer)
    tokenizer = make_tokenizer(vocabulary)
    (tokenizer.model_max_length,) = model.input_size
    return from_stepsnet(model, vocabulary), tokenizer


def make_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The library's tokenizer for one of our vocabularies: equal text gives equal tokens. It pads on the left, for
    generation.

    A BPE has its separator as BOS, EOS and padding. Bytes have two special tokens at 0xFE (BOS, EOS) and 0xFF
    (padding). They were not in the training text, so a byte model does not predict EOS until it is trained with it.
    """
    library = require("tokenizers", extra="text")
    if isinstance(vocabulary, BpeVocabulary):
        tokenizer = library.Tokenizer.from_str(vocabulary.content)
        special = (
            {"bos_token": SEPARATOR, "eos_token": SEPARATOR, "pad_token": SEPARATOR}
            if vocabulary.separator is not None
            else {}
        )
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)
    assert isinstance(vocabulary, ByteVocabulary)
    characters = {character: value for character, value in byte_characters().items() if value < BYTE_END}
    tokens = characters | {SEPARATOR: BYTE_END, PADDING: BYTE_PAD}
    tokenizer = library.Tokenizer(library.models.BPE(vocab=tokens, merges=[]))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", bos_token=SEPARATOR, eos_token=SEPARATOR, pad_token=PADDING,
        split_special_tokens=True,  # "<|endoftext|>" in a text is encoded as characters
    )  # fmt: skip


def _dtype(model: nn.Module) -> torch.dtype:
    return next(iter(model.parameters())).dtype
