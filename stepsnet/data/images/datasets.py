"""Labelled images in memory or in files, as a data set of samples."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from stepsnet.data import mix
from stepsnet.errors import UsageError
from stepsnet.optional import require

log = logging.getLogger("stepsnet.data")

StoredImage = Any
"""uint8 array (H, W, C), or a Pillow image in RGB."""

Transform = Callable[[StoredImage, int], Any]
"""(image, seed) to a uint8 array (H, W, C), normalised later, or a normalised float tensor (C, H, W)."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class UnreadableImageError(Exception):
    """An image cannot be decoded; the message has its path and the reason."""


class ImageSource(Protocol):
    """The stored images of one split."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class index of each image."""

    def read(self, index: int) -> StoredImage:
        """The image; raises UnreadableImageError if it cannot be decoded."""


@dataclass(frozen=True)
class ArraySource:
    """Images in memory: uint8 (N, H, W, C)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def read(self, index: int) -> NDArray[np.uint8]:
        return self.images[index]


class FileSource:
    """Images in files below one folder. File names are one array of bytes, which loader workers share in memory."""

    def __init__(self, folder: Path, labelled_names: Sequence[tuple[str, int]]) -> None:
        self.folder = folder
        self.names = np.array([os.fsencode(name) for name, _ in labelled_names])
        self.labels: NDArray[np.int64] = np.array([label for _, label in labelled_names], dtype=np.int64)

    def read(self, index: int) -> StoredImage:
        pillow = require("PIL.Image", extra="vision")
        path = self.folder / os.fsdecode(bytes(self.names[index]))
        try:
            with pillow.open(path) as image:
                return image.convert("RGB")
        # Pillow's decoders raise all of these for damaged files.
        except (
            OSError,
            SyntaxError,
            ValueError,
            EOFError,
            struct.error,
            zlib.error,
            pillow.DecompressionBombError,
        ) as reason:
            raise UnreadableImageError(f"{path}: {str(reason).replace(f' {str(path)!r}', '')}") from reason


@dataclass(frozen=True)
class LabelledImages:
    """A data set before augmentation, with its classes and its mean and standard deviation."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: ImageSource
    valid: ImageSource

    def __post_init__(self) -> None:
        _check_labels(self.train.labels, self.classes, f"{self.name}, training")
        _check_labels(self.valid.labels, self.classes, f"{self.name}, validation")
        # Validation may lack a class, but a class without training images is a mistake.
        empty = np.flatnonzero(np.bincount(self.train.labels, minlength=len(self.classes)) == 0)
        if len(empty):
            names = ", ".join(self.classes[i] for i in empty[:5]) + (", …" if len(empty) > 5 else "")
            raise UsageError(f"{self.name}: {len(empty)} of {len(self.classes)} classes have no images ({names}).")

    @property
    def channels(self) -> int:
        return len(self.mean)


def _check_labels(labels: NDArray[np.int64], classes: Sequence[str], where: str) -> None:
    """Refuse an empty split or a label out of range."""
    if len(labels) == 0:
        raise UsageError(f"{where}: there are no images.")
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise UsageError(
            f"{where}: image {wrong[0]} has label {labels[wrong[0]]}, but labels must be 0 to {len(classes) - 1}."
        )


class ImageSample(NamedTuple):
    sample_id: int
    image: Any
    label: int


class SkippingReader:
    """Reads images. An unreadable one is logged once, counted and skipped, or with `strict` raises an error."""

    def __init__(self, source: ImageSource, strict: bool) -> None:
        self.source, self.strict = source, strict
        # In shared memory, so that the training process sees what loader workers could not read.
        self._unreadable = torch.zeros(len(source.labels), dtype=torch.bool).share_memory_()

    def read(self, index: int) -> StoredImage | None:
        """The image, or None if it is skipped."""
        try:
            return self.source.read(index)
        except UnreadableImageError as reason:
            if self.strict:
                raise UsageError(f"unreadable image {reason} (data.strict=false skips it)") from reason
            if not self._unreadable[index]:
                self._unreadable[index] = True
                log.warning("skipped an unreadable image: %s", reason)
            return None

    @property
    def skipped(self) -> int:
        """Number of unreadable images so far, over all loader workers of this process."""
        return int(self._unreadable.sum())


class ImageDataset:
    """Samples by (epoch, index): read, then transformed with the randomness of (seed, epoch, index)."""

    def __init__(self, source: ImageSource, transform: Transform, *, seed: int, strict: bool) -> None:
        self.source, self.transform, self.seed = source, transform, seed
        self._reader = SkippingReader(source, strict)

    def __len__(self) -> int:
        return len(self.source.labels)

    def __getitem__(self, key: tuple[int, int]) -> ImageSample | None:
        epoch, index = key
        stored = self._reader.read(index)
        if stored is None:
            return None
        image = self.transform(stored, mix(self.seed, epoch, index))
        return ImageSample(index, image, int(self.source.labels[index]))

    @property
    def skipped(self) -> int:
        """Number of unreadable images so far, over all loader workers of this process."""
        return self._reader.skipped
