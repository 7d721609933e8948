"""Labelled images in memory or in files, as a data set of samples: stored images, transforms, samples.

Legend: H, W height and width, C channels, S the model's input size.
"""

from __future__ import annotations

import functools
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

from stepsnet.data.config import AugmentConfig, DataConfig, mix, torch_seeded
from stepsnet.errors import UsageError
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision

log = logging.getLogger("stepsnet.data")

StoredImage = Any
"""uint8 array (H, W, C), or a Pillow image in RGB."""

Transform = Callable[[StoredImage, int], Any]
"""(image, seed) to a uint8 array (H, W, C), normalised later, or a normalised float tensor (C, H, W)."""

_MAGNITUDE_BINS = 1001  # fine enough for a magnitude with a standard deviation
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
                mode, converted = image.mode, image.convert("RGB")
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
        if mode.startswith(("I", "F")):  # Pillow clips their values at 255
            raise UsageError(f"{path} has more than 8 bits per channel (mode {mode}); convert it to 8 bits.")
        return converted


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


@dataclass(frozen=True)
class ShiftFlip:
    """Pad, crop at a random position and flip an array of the right size; takes a few microseconds."""

    padding: int = 0
    flip: float = 0.0

    def __call__(self, image: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
        if not self.padding and not self.flip:
            return image
        if self.padding:
            down, right = (mix(seed, axis) % (2 * self.padding + 1) - self.padding for axis in (0, 1))
            image = _shifted(image, down, right)
        return image[:, ::-1] if mix(seed, 2) < self.flip * 2**63 else image


def _shifted(image: NDArray[np.uint8], down: int, right: int) -> NDArray[np.uint8]:
    """The image shifted by whole pixels and filled with black, which equals padding with zeros and cropping."""
    height, width = image.shape[:2]
    moved = np.zeros_like(image)
    moved[max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = image[
        max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)
    ]
    return moved


@dataclass(frozen=True)
class FullTransform:
    """torchvision's transforms with randomness from the given seed only; `augment` is None in validation."""

    augment: AugmentConfig | None
    img_size: int
    crop_pct: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: StoredImage, seed: int) -> torch.Tensor:
        with torch_seeded(seed):
            return _pipeline(self)(image)


def make_transform(
    source: ImageSource, augment: AugmentConfig | None, data: DataConfig, mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Transform:
    """The fastest transform with these settings; `augment` is None in validation."""
    config = augment or AugmentConfig()
    plain = config.crop == "pad" or (config.crop == "none" and data.crop_pct == 1)
    plain = plain and not (config.color_jitter or config.randaugment or config.erasing)
    if plain and isinstance(source, ArraySource) and source.images.shape[1:3] == (data.img_size, data.img_size):
        return ShiftFlip(config.crop_padding if config.crop == "pad" else 0, config.flip)
    return FullTransform(augment, data.img_size, data.crop_pct, mean, std)


@functools.lru_cache(maxsize=8)
def _pipeline(wanted: FullTransform) -> Any:
    """Built on first use in each process: torchvision must be imported before its objects are unpickled."""
    import_torchvision()
    from torchvision.transforms import v2

    size, bicubic = wanted.img_size, v2.InterpolationMode.BICUBIC
    centre = [v2.Resize(round(size / wanted.crop_pct), interpolation=bicubic, antialias=True), v2.CenterCrop(size)]
    normalise = v2.Normalize(wanted.mean, wanted.std)
    finish = [_to_image, v2.ToDtype(torch.float32, scale=True), normalise, v2.ToPureTensor()]
    augment = wanted.augment
    if augment is None:
        return v2.Compose([_array_to_image, *centre, *finish])
    steps: list[Any] = [_array_to_image]
    if augment.crop == "resized":
        scale = (augment.crop_min_scale, 1.0)
        steps.append(v2.RandomResizedCrop(size, scale=scale, interpolation=bicubic, antialias=True))
    elif augment.crop == "pad":
        steps.append(v2.Resize(size, interpolation=bicubic, antialias=True))
        steps.append(v2.RandomCrop(size, padding=augment.crop_padding))
    else:
        steps += centre
    if augment.flip:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    if augment.color_jitter:
        steps.append(v2.ColorJitter(augment.color_jitter, augment.color_jitter, augment.color_jitter))
    if augment.randaugment:
        grey = [255 * value for value in wanted.mean]
        steps.append(_VaryingRandAugment(augment.randaugment, augment.randaugment_std, grey))
    steps += finish
    if augment.erasing:
        # Last: the noise has the standard deviation of normalised images.
        steps.append(v2.RandomErasing(augment.erasing, value="random"))
    return v2.Compose(steps)


def _array_to_image(image: StoredImage) -> Any:
    """Arrays become image tensors; Pillow images stay, because Pillow resizes and augments uint8 faster."""
    return _to_image(image) if isinstance(image, np.ndarray) else image


def _to_image(image: Any) -> Any:
    from torchvision.transforms.v2 import functional

    return functional.to_image(image)


class _VaryingRandAugment:
    """torchvision's RandAugment with settings close to timm's `rand-m9-mstd0.5-inc1`, which DeiT and Swin use.

    As in timm, the magnitude goes up to 10 and has a standard deviation between images, and each of the two operations
    is skipped half of the time. Differences: torchvision has Identity but no Invert and no SolarizeAdd (14 operations,
    not 15); both operations of an image share one magnitude; translation goes up to 150/331 of the side instead of
    0.45; posterisation keeps at least 4 bits; geometric operations are always bilinear.
    """

    def __init__(self, magnitude: float, std: float, fill: list[float]) -> None:
        from torchvision.transforms import v2

        self.magnitude, self.std = magnitude, std
        self.operations = v2.RandAugment(
            num_magnitude_bins=_MAGNITUDE_BINS, interpolation=v2.InterpolationMode.BILINEAR, fill=fill
        )

    def __call__(self, image: Any) -> Any:
        drawn = self.magnitude + self.std * float(torch.randn(()))
        self.operations.magnitude = round(min(max(drawn, 0.0), 10.0) / 10 * (_MAGNITUDE_BINS - 1))
        self.operations.num_ops = int((torch.rand(2) < 0.5).sum())
        return self.operations(image)


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
