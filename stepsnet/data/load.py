"""The reader for each `data.kind`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepsnet.data.config import EMBEDDED_KINDS, DataConfig
from stepsnet.data.dense.coco import Objects, load_coco
from stepsnet.data.dense.masks import MaskedImages, load_mask_folder
from stepsnet.data.images.datasets import LabelledImages
from stepsnet.data.images.readers import (
    load_cifar10,
    load_digits,
    load_fashion_mnist,
    load_image_folder,
    load_tiny_imagenet,
)  # fmt: skip
from stepsnet.data.text.corpora import load_gutenberg, load_python_docs
from stepsnet.data.text.tokens import is_prepared, load_tokens
from stepsnet.data.text.windows import Text, load_text_files
from stepsnet.errors import UsageError

IMAGES: dict[str, Callable[[DataConfig], LabelledImages]] = {
    "image_folder": load_image_folder,
    "tiny_imagenet": load_tiny_imagenet,
    "cifar10": load_cifar10,
    "fashion_mnist": load_fashion_mnist,
    "digits": load_digits,
}
TEXTS: dict[str, Callable[[DataConfig], Text]] = {
    "text": load_text_files,
    "tokens": load_tokens,
    "gutenberg": load_gutenberg,
    "python_docs": load_python_docs,
}


def load_images(config: DataConfig) -> LabelledImages:
    """The image data set of `config`, checked; a UsageError says what is wrong with it."""
    if config.kind not in IMAGES:
        raise UsageError(f"data.kind={config.kind} is not an image data set; those are {', '.join(IMAGES)}.")
    _refuse_root_of_embedded(config)
    return IMAGES[config.kind](config)


def load_objects(config: DataConfig, *, masks: bool) -> Objects:
    """The annotated objects of `config`, checked; `masks` says whether each needs one."""
    if config.kind != "coco":
        raise UsageError(f"data.kind={config.kind} has no annotated objects; data.kind=coco has.")
    return load_coco(config, masks=masks)


def load_masked(config: DataConfig) -> MaskedImages:
    """The images with segmentation masks of `config`, checked."""
    if config.kind != "mask_folder":
        raise UsageError(f"data.kind={config.kind} has no segmentation masks; data.kind=mask_folder has.")
    return load_mask_folder(config)


def load_text(config: DataConfig) -> Text:
    """The text of `config`, checked. `kind="text"` takes text files, or a folder that `stepsnet prepare-text` wrote."""
    if config.kind not in TEXTS:
        raise UsageError(f"data.kind={config.kind} is not text; text is {', '.join(TEXTS)}.")
    _refuse_root_of_embedded(config)
    kind = config.kind
    if kind == "text":
        if config.root and is_prepared(Path(config.root).expanduser()):
            kind = "tokens"
        elif config.valid and is_prepared(Path(config.valid).expanduser()):
            raise UsageError(f"data.valid={config.valid} is a prepared text, but data.root={config.root} is not.")
    text = TEXTS[kind](config)
    text.check(config.seq_len)
    return text


def _refuse_root_of_embedded(config: DataConfig) -> None:
    if config.kind in EMBEDDED_KINDS and config.root:
        raise UsageError(f"data.root={config.root} has no effect: data.kind={config.kind} needs no files.")
