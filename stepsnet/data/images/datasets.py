"""Labelled pictures, from memory or from files, as a data set of samples."""

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

from stepsnet.data.rng import mix
from stepsnet.errors import UsageError
from stepsnet.optional import require

log = logging.getLogger("stepsnet.data")

Picture = Any
"""uint8 array (H, W, C), or a Pillow image in RGB."""

Transform = Callable[[Picture, int], Any]
"""(picture, seed) to what the model eats: uint8 array (H, W, C), still to be normalised, or a float tensor (C, H, W)."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class UnreadablePictureError(Exception):
    """A picture that cannot be decoded; the text names it and says why."""


class PictureSource(Protocol):
    """Pictures of one split, as stored."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """One class number a picture."""

    def read(self, index: int) -> Picture:
        """The picture; UnreadablePictureError if it cannot be decoded."""


@dataclass(frozen=True)
class ArraySource:
    """Pictures that are all in memory: uint8 (N, H, W, C)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def read(self, index: int) -> NDArray[np.uint8]:
        return self.images[index]


class FileSource:
    """Pictures in files below one folder. The names are one array of bytes, so that loader workers share its memory."""

    def __init__(self, folder: Path, labelled_names: Sequence[tuple[str, int]]) -> None:
        self.folder = folder
        self.names = np.array([os.fsencode(name) for name, _ in labelled_names])
        self.labels: NDArray[np.int64] = np.array([label for _, label in labelled_names], dtype=np.int64)

    def read(self, index: int) -> Picture:
        pillow = require("PIL.Image", extra="vision")
        path = self.folder / os.fsdecode(bytes(self.names[index]))
        try:
            with pillow.open(path) as image:
                return image.convert("RGB")
        # Pillow's decoders let all of these out when a file is damaged.
        except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, pillow.DecompressionBombError) as reason:
            raise UnreadablePictureError(f"{path}: {str(reason).replace(f' {str(path)!r}', '')}") from reason


@dataclass(frozen=True)
class Pictures:
    """A whole data set before augmentation, with what models and normalisation need to know of it."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: PictureSource
    valid: PictureSource

    def __post_init__(self) -> None:
        _check_labels(self.train.labels, self.classes, f"{self.name}, training")
        _check_labels(self.valid.labels, self.classes, f"{self.name}, validation")
        # Validation may do without a class, but a class that is never trained is a mistake.
        empty = np.flatnonzero(np.bincount(self.train.labels, minlength=len(self.classes)) == 0)
        if len(empty):
            names = ", ".join(self.classes[i] for i in empty[:5]) + (", …" if len(empty) > 5 else "")
            raise UsageError(f"{self.name}, training: {len(empty)} of {len(self.classes)} classes have no picture ({names}).")

    @property
    def channels(self) -> int:
        return len(self.mean)


def _check_labels(labels: NDArray[np.int64], classes: Sequence[str], where: str) -> None:
    """Find an empty split or a label out of range before the first step."""
    if len(labels) == 0:
        raise UsageError(f"{where}: there are no pictures.")
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise UsageError(f"{where}: picture {wrong[0]} has label {labels[wrong[0]]}, but labels go from 0 to {len(classes) - 1}.")


class PictureSample(NamedTuple):
    sample_id: int
    image: Any
    label: int


class Skipper:
    """Reads pictures; one that is unreadable is named once, counted and left out, or stops everything (`strict`)."""

    def __init__(self, source: PictureSource, strict: bool) -> None:
        self.source, self.strict = source, strict
        # In shared memory, so that what a loader worker could not read is known to the process that trains.
        self._unreadable = torch.zeros(len(source.labels), dtype=torch.bool).share_memory_()

    def read(self, index: int) -> Picture | None:
        """The picture, or None where it is left out."""
        try:
            return self.source.read(index)
        except UnreadablePictureError as reason:
            if self.strict:
                raise UsageError(f"unreadable picture {reason} (data.strict=false would skip it)") from reason
            if not self._unreadable[index]:
                self._unreadable[index] = True
                log.warning("skipped an unreadable picture: %s", reason)
            return None

    @property
    def skipped(self) -> int:
        """How many different pictures were unreadable so far, over all loader workers of this process."""
        return int(self._unreadable.sum())


class PictureDataset:
    """Samples by (epoch, index): read, then transformed with the randomness of (seed, epoch, index)."""

    def __init__(self, source: PictureSource, transform: Transform, *, seed: int, strict: bool) -> None:
        self.source, self.transform, self.seed = source, transform, seed
        self._reader = Skipper(source, strict)

    def __len__(self) -> int:
        return len(self.source.labels)

    def __getitem__(self, key: tuple[int, int]) -> PictureSample | None:
        epoch, index = key
        picture = self._reader.read(index)
        if picture is None:
            return None
        image = self.transform(picture, mix(self.seed, epoch, index))
        return PictureSample(index, image, int(self.source.labels[index]))

    @property
    def skipped(self) -> int:
        """How many different pictures were unreadable so far, over all loader workers of this process."""
        return self._reader.skipped
