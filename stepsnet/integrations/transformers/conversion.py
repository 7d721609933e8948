"""Lossless conversion between the library's models and ours, and tokenizers for our vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import BitImageProcessorPil, PreTrainedModel, PreTrainedTokenizerFast
from transformers.image_utils import PILImageResampling

from stepsnet.data.text.vocabulary import SEPARATOR, BpeVocabulary, ByteVocabulary, Vocabulary, byte_characters
from stepsnet.errors import UsageError
from stepsnet.files import read_json
from stepsnet.integrations.transformers.auto import FAMILIES
from stepsnet.integrations.transformers.language import StepsTransformerConfig
from stepsnet.integrations.transformers.vision import StepsVisionForImageClassification
from stepsnet.models import Model, VisionModel, load_model
from stepsnet.models.design import image_sides
from stepsnet.models.vision import IMAGENET_MEAN, IMAGENET_STD
from stepsnet.optional import require
from stepsnet.runs.folder import CLASSES, WEIGHTS, WEIGHTS_EMA, is_run, read_settings

BYTE_END, BYTE_PAD = 0xFE, 0xFF
"""Special tokens of byte models. No UTF-8 text contains these two bytes, so the vocabulary stays at 256 tokens."""
PADDING = "<|pad|>"


def from_stepsnet(model: Model, vocabulary: Vocabulary | None = None, **others: Any) -> PreTrainedModel:
    """The library's model with a copy of our weights: a causal language model or an image classifier.

    The vocabulary of a language model decides its special tokens. `others` are further fields of its configuration.
    """
    if isinstance(vocabulary, ByteVocabulary):
        others |= {"bos_token_id": BYTE_END, "eos_token_id": BYTE_END, "pad_token_id": BYTE_PAD}
    elif vocabulary is not None:
        others |= {"bos_token_id": vocabulary.separator, "eos_token_id": vocabulary.separator}
    classes = FAMILIES[model.family]
    converted = classes.main(classes.config.from_model(model, dtype=_dtype(model), **others))
    nn.Module.to(converted, dtype=_dtype(model))  # the library's wrapper has lost the type signature
    own = model.state_dict()
    head = {key: own.pop(f"head.{key}") for key in ("weight", "bias") if f"head.{key}" in own}
    converted.model.network.load_state_dict(own)
    if head:
        converted.classifier.load_state_dict(head)
    converted.tie_weights()
    converted.train(model.training)
    return converted


def to_stepsnet(model: PreTrainedModel) -> Model:
    """Our model with a copy of the library's weights; `save_model` writes it to a file."""
    config = model.config
    if isinstance(config, StepsTransformerConfig) and not config.tie_word_embeddings:
        raise UsageError("stepsnet's language models share one embedding between input and head; this model does not.")
    weights = dict(model.model.network.state_dict())
    if isinstance(model, StepsVisionForImageClassification):
        weights |= {f"head.{key}": tensor for key, tensor in model.classifier.state_dict().items()}
    converted = config.create().to(_dtype(model))
    converted.load_state_dict(weights)
    converted.train(model.training)
    return converted


def from_run(folder: str | Path, *, ema: bool = False) -> tuple[PreTrainedModel, Any]:
    """Model and tokenizer, or model and image processor, of a run folder, ready for `save_pretrained`."""
    folder = Path(folder)
    config = read_settings(folder) if is_run(folder) else {}
    if config.get("task") == "classification":
        facts = read_json(folder / CLASSES)
        model = load_model(folder / (WEIGHTS_EMA if ema else WEIGHTS)).eval()
        names = dict(enumerate(facts["classes"]))
        labels: dict[str, Any] = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
        share = config["data"]["crop_pct"]
        return from_stepsnet(model, **labels), make_image_processor(model, share, facts["mean"], facts["std"])

    from stepsnet.data.text.trained import load_language_run

    language_model, vocabulary = load_language_run(folder, ema=ema)
    tokenizer = make_tokenizer(vocabulary)
    (tokenizer.model_max_length,) = language_model.input_size
    return from_stepsnet(language_model, vocabulary), tokenizer


def make_image_processor(
    model: Model | PreTrainedModel, crop_pct: float = 0.875, mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> BitImageProcessorPil:
    """The library's image processor with our evaluation transform: resize, crop the centre, normalise."""
    size = model.input_size[1:] if isinstance(model, VisionModel) else image_sides(cast(Any, model).config.image_size)
    if len(mean) != 3:
        raise UsageError(f"the library's image processors are for RGB images, not for {len(mean)} channels.")
    return BitImageProcessorPil(
        size={"shortest_edge": round(min(size) / crop_pct)}, crop_size={"height": size[0], "width": size[1]},
        image_mean=list(mean), image_std=list(std), resample=PILImageResampling.BICUBIC,
    )  # fmt: skip


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
