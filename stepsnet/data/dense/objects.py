"""From an annotated image to a training sample: image, boxes and masks are resized, cropped and flipped.

Legend: H, W height and width of the model's input, M objects of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepsnet.data.config import AugmentConfig, mix
from stepsnet.data.dense.coco import AnnotatedImage, ObjectSplit, decode_mask
from stepsnet.data.images.datasets import IMAGENET_MEAN, IMAGENET_STD, SkippingReader
from stepsnet.errors import UsageError
from stepsnet.optional import require

STEP = 32  # between the short sides of multi-scale training
SMALLEST_BOX = 1.0  # smallest side of a box that is kept after cropping, in pixels


class ObjectSample(NamedTuple):
    sample_id: int
    image: Tensor
    """(3, H, W), normalised."""
    boxes: Tensor
    """(M, 4) corners in pixels of `image`."""
    labels: Tensor
    """(M,) from 1."""
    masks: Tensor
    """(M, H, W) of 0 and 1; (M, 0, 0) without masks."""


@dataclass(frozen=True)
class View:
    """A transform: resize to `size` (height, width), crop to `window` at `corner`, flip or not."""

    size: tuple[int, int]
    corner: tuple[int, int]
    window: tuple[int, int]
    flip: bool


def fitted(height: int, width: int, short: int, long: int) -> tuple[int, int]:
    """The size with a short side of `short`, or less if the long side would exceed `long`."""
    factor = min(short / min(height, width), long / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def choose_view(
    height: int, width: int, img_size: int, max_size: int, augment: AugmentConfig | None, seed: int
) -> View:
    """The view of an image of this size for the settings and `seed`; without `augment`, the resize of validation."""
    if augment is None:
        size = fitted(height, width, img_size, max_size)
        return View(size, (0, 0), size, False)
    flip = uniform(seed, 0) < augment.flip
    if augment.scale != (1.0, 1.0):  # large-scale jitter: fit into img_size × factor, crop img_size
        low, high = augment.scale
        side = max(1, round(img_size * (low + (high - low) * uniform(seed, 1))))
        size = fitted(height, width, side, side)
        window = (min(size[0], img_size), min(size[1], img_size))
        corner = tuple(int(uniform(seed, 2 + axis) * (size[axis] - window[axis] + 1)) for axis in (0, 1))
        return View(size, (corner[0], corner[1]), window, flip)
    short = img_size
    if augment.short_side != (0, 0):
        sides = range(augment.short_side[0], augment.short_side[1] + 1, STEP)
        short = sides[int(uniform(seed, 1) * len(sides))]
    size = fitted(height, width, short, max_size)
    return View(size, (0, 0), size, flip)


def uniform(seed: int, use: int) -> float:
    """A random number in [0, 1); each `use` of a seed gives another one."""
    return mix(seed, use) / 2**63


class ObjectDataset:
    """Samples by (epoch, index). Crowds are left out, and objects outside the crop."""

    def __init__(
        self, split: ObjectSplit, augment: AugmentConfig | None, *, img_size: int, max_size: int, masks: bool,
        seed: int, strict: bool,
    ) -> None:
        self.split, self.augment, self.masks, self.seed = split, augment, masks, seed
        self.img_size, self.max_size = img_size, max_size
        self._reader = SkippingReader(split.source, strict)

    def __len__(self) -> int:
        return len(self.split.images)

    @property
    def skipped(self) -> int:
        """Number of unreadable images so far, over all loader workers of this process."""
        return self._reader.skipped

    def __getitem__(self, key: tuple[int, int]) -> ObjectSample | None:
        epoch, index = key
        image = self._reader.read(index)
        if image is None:
            return None
        annotated = self.split.images[index]
        if image.size != (annotated.width, annotated.height):
            found, stated = f"{image.size[0]}×{image.size[1]}", f"{annotated.width}×{annotated.height}"
            name = f"{annotated.file_name} (image {annotated.image_id})"
            raise UsageError(f"{name} is {found}, but its annotations say {stated}.")
        view = choose_view(
            annotated.height, annotated.width, self.img_size, self.max_size, self.augment, mix(self.seed, epoch, index)
        )
        boxes, labels, masks = self._objects(annotated, view)
        return ObjectSample(index, to_input(image, view), boxes, labels, masks)

    def _objects(self, annotated: AnnotatedImage, view: View) -> tuple[Tensor, Tensor, Tensor]:
        objects = [each for each in annotated.objects if not each.crowd]
        down, across = view.size[0] / annotated.height, view.size[1] / annotated.width
        corners = np.array([each.box for each in objects], dtype=np.float64).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        corners = corners * (across, down, across, down) - (view.corner[1], view.corner[0]) * 2
        corners = corners.clip(0, (view.window[1], view.window[0]) * 2)
        seen = ((corners[:, 2:] - corners[:, :2]) >= SMALLEST_BOX).all(axis=1)
        masks = np.zeros((len(objects), *(view.window if self.masks else (0, 0))), dtype=np.uint8)
        if self.masks:
            for mask, each in zip(masks, objects, strict=True):
                mask[:] = apply_view(decode_mask(each.segmentation, annotated.height, annotated.width), view)
            seen &= masks.any(axis=(1, 2))
        if view.flip:
            corners[:, [0, 2]] = view.window[1] - corners[:, [2, 0]]
        labels = np.array([each.label for each in objects], dtype=np.int64)
        return torch.from_numpy(corners[seen]).float(), torch.from_numpy(labels[seen]), torch.from_numpy(masks[seen])


def to_input(image: Any, view: View, colours: Sequence[float] = (1.0, 1.0, 1.0)) -> Tensor:
    """A Pillow image as model input (3, H, W); `colours`: factors of brightness, contrast and saturation."""
    pillow = require("PIL.Image", extra="vision")
    rows, columns = view.size
    if image.size != (columns, rows):
        image = image.resize((columns, rows), pillow.Resampling.BILINEAR)
    pixels = _window(np.asarray(image), view)
    tensor = (
        torch.from_numpy(np.array(pixels)).permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
    )
    if tuple(colours) != (1.0, 1.0, 1.0):
        brightness, contrast, saturation = colours
        tensor = (tensor * brightness).clamp_(0, 255)
        tensor = tensor.mean().lerp(tensor, torch.tensor(contrast)).clamp_(0, 255)
        tensor = tensor.mean(dim=0, keepdim=True).lerp(tensor, torch.tensor(saturation)).clamp_(0, 255)
    mean, std = (torch.tensor(values).view(3, 1, 1) * 255 for values in (IMAGENET_MEAN, IMAGENET_STD))
    return tensor.sub_(mean).div_(std)


def apply_view(values: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    """A map of labels (height, width) transformed by nearest-neighbour resizing, cropping and flipping."""
    rows, columns = ((np.arange(new) + 0.5) * old / new for new, old in zip(view.size, values.shape, strict=True))
    return _window(values[rows.astype(np.int64)[:, None], columns.astype(np.int64)[None]], view)


def _window(pixels: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    top, left = view.corner
    cut = pixels[top : top + view.window[0], left : left + view.window[1]]
    return cut[:, ::-1] if view.flip else cut
