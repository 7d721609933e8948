"""From a stored image to the model's input: a fast path for small arrays, torchvision's transforms v2 for the rest;
Mixup and CutMix.

Legend: H, W height and width, C channels, S the model's input size.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepsnet.data import mix, torch_seeded
from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.images.datasets import ArraySource, ImageSource, StoredImage, Transform
from stepsnet.optional.torchvision import import_torchvision

_MAGNITUDE_BINS = 1001  # fine enough for a magnitude with a standard deviation
_MIXING = 0x313  # separates these random draws from those of single samples


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
    plain = config.crop != "resized" and not (config.color_jitter or config.randaugment or config.erasing)
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
    finish = [
        _to_image,
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(wanted.mean, wanted.std),
        v2.ToPureTensor(),
    ]
    augment = wanted.augment
    if augment is None:
        return v2.Compose([_array_to_image, *centre, *finish])
    steps: list[Any] = [_array_to_image]
    if augment.crop == "resized":
        steps.append(
            v2.RandomResizedCrop(size, scale=(augment.crop_min_scale, 1.0), interpolation=bicubic, antialias=True)
        )
    elif augment.crop == "pad":
        steps += [
            v2.Resize(size, interpolation=bicubic, antialias=True),
            v2.RandomCrop(size, padding=augment.crop_padding),
        ]
    else:
        steps += centre
    if augment.flip:
        steps.append(v2.RandomHorizontalFlip(augment.flip))
    if augment.color_jitter:
        steps.append(v2.ColorJitter(augment.color_jitter, augment.color_jitter, augment.color_jitter))
    if augment.randaugment:
        steps.append(
            _VaryingRandAugment(augment.randaugment, augment.randaugment_std, [255 * value for value in wanted.mean])
        )
    steps += finish
    if augment.erasing:
        steps.append(
            v2.RandomErasing(augment.erasing, value="random")
        )  # last: the noise has the standard deviation of normalised images
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


@dataclass(frozen=True)
class BatchMixer:
    """Mixup or CutMix of a batch, with randomness from (seed, step, first id). Targets become soft, (B, K)."""

    augment: AugmentConfig
    num_classes: int
    smoothing: float
    seed: int

    def __call__(self, images: Tensor, target: Tensor, ids: Tensor, step: int) -> tuple[Tensor, Tensor]:
        augment = self.augment
        if not (augment.mixup or augment.cutmix) or len(images) == 0:
            return images, target
        with torch_seeded(mix(self.seed, _MIXING, step, int(ids[0]))):
            if float(torch.rand(())) >= augment.mix_prob:
                return images, target
            both = bool(augment.mixup and augment.cutmix)
            cut = float(torch.rand(())) < augment.mix_switch if both else bool(augment.cutmix)
            # torchvision's CutMix computes lambda from the box after clipping it to the image.
            images, soft = _mixer(
                "CutMix" if cut else "MixUp", augment.cutmix if cut else augment.mixup, self.num_classes
            )(images, target)
        return images, soft * (1 - self.smoothing) + self.smoothing / self.num_classes


@functools.lru_cache(maxsize=8)
def _mixer(name: str, alpha: float, num_classes: int) -> Any:
    import_torchvision()
    from torchvision.transforms import v2

    return getattr(v2, name)(alpha=alpha, num_classes=num_classes)
