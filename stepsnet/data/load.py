"""Which reader belongs to which `data.kind`."""

from __future__ import annotations

from collections.abc import Callable

from stepsnet.data.config import DataConfig
from stepsnet.data.dense.coco import Objects, load_coco
from stepsnet.data.dense.masks import MaskedPictures, load_mask_folder
from stepsnet.data.images.arrays import load_cifar10, load_digits, load_fashion_mnist
from stepsnet.data.images.datasets import Pictures
from stepsnet.data.images.folders import load_image_folder, load_tiny_imagenet
from stepsnet.data.text.gutenberg import load_gutenberg
from stepsnet.data.text.python_docs import load_python_docs
from stepsnet.data.text.tokens import load_tokens
from stepsnet.data.text.windows import Text, load_text_files
from stepsnet.errors import UsageError

PICTURES: dict[str, Callable[[DataConfig], Pictures]] = {
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


def load_pictures(config: DataConfig) -> Pictures:
    """The data set of pictures that the config names, checked, or a UsageError that says what is wrong with it."""
    if config.kind not in PICTURES:
        raise UsageError(f"data.kind={config.kind} is not a set of pictures; those are {', '.join(PICTURES)}.")
    return PICTURES[config.kind](config)


def load_objects(config: DataConfig, *, masks: bool) -> Objects:
    """The annotated objects that the config names, checked; `masks` says whether each needs one."""
    if config.kind != "coco":
        raise UsageError(f"data.kind={config.kind} has no annotated objects; data.kind=coco has.")
    return load_coco(config, masks=masks)


def load_masked(config: DataConfig) -> MaskedPictures:
    """The pictures with masks that the config names, checked."""
    if config.kind != "mask_folder":
        raise UsageError(f"data.kind={config.kind} has no masks of classes; data.kind=mask_folder has.")
    return load_mask_folder(config)


def load_text(config: DataConfig) -> Text:
    """The text that the config names, checked, or a UsageError that says what is wrong with it."""
    if config.kind not in TEXTS:
        raise UsageError(f"data.kind={config.kind} is not text; that is {', '.join(TEXTS)}.")
    text = TEXTS[config.kind](config)
    text.check(config.seq_len)
    return text
