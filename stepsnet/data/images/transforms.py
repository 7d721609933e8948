"""From a stored picture to the model's input: a fast path for small arrays, torchvision's transforms v2 for everything else.

Legend: H, W height and width, C channels, S the model's input size.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.data.images.datasets import ArraySource, Picture, PictureSource, Transform
from stepsnet.data.rng import mix, torch_seeded
from stepsnet.optional.torchvision import import_torchvision

_MAGNITUDE_BINS = 1001  # fine enough for a magnitude that varies from picture to picture


@dataclass(frozen=True)
class ShiftFlip:
    """Pad, crop at a random place and flip an array that already has the right size: a few microseconds a picture."""

    padding: int = 0
    flip: float = 0.0

    def __call__(self, picture: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
        if not self.padding and not self.flip:
            return picture
        if self.padding:
            down, right = (mix(seed, axis) % (2 * self.padding + 1) - self.padding for axis in (0, 1))
            picture = _shifted(picture, down, right)
        return picture[:, ::-1] if mix(seed, 2) < self.flip * 2**63 else picture


def _shifted(picture: NDArray[np.uint8], down: int, right: int) -> NDArray[np.uint8]:
    """The picture moved by whole pixels, black where it left: the same as padding with zeros and cropping."""
    height, width = picture.shape[:2]
    moved = np.zeros_like(picture)
    moved[max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = picture[
        max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)
    ]
    return moved


@dataclass(frozen=True)
class FullTransform:
    """Any picture through torchvision's transforms, drawing only from the given seed; `augment` is None in validation."""

    augment: AugmentConfig | None
    img_size: int
    crop_pct: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, picture: Picture, seed: int) -> torch.Tensor:
        with torch_seeded(seed):
            return _pipeline(self)(picture)


def make_transform(
    source: PictureSource, augment: AugmentConfig | None, data: DataConfig, mean: tuple[float, ...], std: tuple[float, ...]
) -> Transform:
    """The cheapest transform that does what is asked; `augment` is None in validation."""
    config = augment or AugmentConfig()
    plain = config.crop != "resized" and not (config.color_jitter or config.randaugment or config.erasing)
    if plain and isinstance(source, ArraySource) and source.images.shape[1:3] == (data.img_size, data.img_size):
        return ShiftFlip(config.crop_padding if config.crop == "pad" else 0, config.flip)
    return FullTransform(augment, data.img_size, data.crop_pct, mean, std)


@functools.lru_cache(maxsize=8)
def _pipeline(wanted: FullTransform) -> Any:
    """Built on first use in each process, since torchvision must be imported our way before its objects can be unpickled."""
    import_torchvision()
    from torchvision.transforms import v2

    size, bicubic = wanted.img_size, v2.InterpolationMode.BICUBIC
    centre = [v2.Resize(round(size / wanted.crop_pct), interpolation=bicubic, antialias=True), v2.CenterCrop(size)]
    finish = [_to_image, v2.ToDtype(torch.float32, scale=True), v2.Normalize(wanted.mean, wanted.std), v2.ToPureTensor()]
    augment = wanted.augment
    if augment is None:
        return v2.Compose([_array_to_image, *centre, *finish])
    steps: list[Any] = [_array_to_image]
    if augment.crop == "resized":
        steps.append(v2.RandomResizedCrop(size, scale=(augment.crop_min_scale, 1.0), interpolation=bicubic, antialias=True))
    elif augment.crop == "pad":
        steps += [v2.Resize(size, interpolation=bicubic, antialias=True), v2.RandomCrop(size, padding=augment.crop_padding)]
    else:
        steps += centre
    if augment.flip:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    if augment.color_jitter:
        steps.append(v2.ColorJitter(augment.color_jitter, augment.color_jitter, augment.color_jitter))
    if augment.randaugment:
        steps.append(_VaryingRandAugment(augment.randaugment, augment.randaugment_std, [255 * value for value in wanted.mean]))
    steps += finish
    if augment.erasing:
        steps.append(v2.RandomErasing(augment.erasing, value="random"))  # last: noise of the normalised pictures' spread
    return v2.Compose(steps)


def _array_to_image(picture: Picture) -> Any:
    """Arrays become image tensors here; Pillow's images stay what they are, since Pillow resizes and augments uint8 faster."""
    return _to_image(picture) if isinstance(picture, np.ndarray) else picture


def _to_image(picture: Any) -> Any:
    from torchvision.transforms.v2 import functional

    return functional.to_image(picture)


class _VaryingRandAugment:
    """torchvision's RandAugment, set to come near timm's `rand-m9-mstd0.5-inc1`, which DeiT and Swin use.

    As there, the magnitude runs to 10, varies from picture to picture with a standard deviation, and each of the two operations is
    left out half of the time. What differs: torchvision has no Invert and no SolarizeAdd but an Identity (14 operations, not 15),
    both operations of a picture share one magnitude, translation reaches 150/331 of the side instead of 0.45, posterisation leaves at
    least 4 bits, and geometric operations are always bilinear.
    """

    def __init__(self, magnitude: float, std: float, fill: list[float]) -> None:
        from torchvision.transforms import v2

        self.magnitude, self.std = magnitude, std
        self.operations = v2.RandAugment(num_magnitude_bins=_MAGNITUDE_BINS, interpolation=v2.InterpolationMode.BILINEAR, fill=fill)

    def __call__(self, picture: Any) -> Any:
        drawn = self.magnitude + self.std * float(torch.randn(()))
        self.operations.magnitude = round(min(max(drawn, 0.0), 10.0) / 10 * (_MAGNITUDE_BINS - 1))
        self.operations.num_ops = int((torch.rand(2) < 0.5).sum())
        return self.operations(picture)
