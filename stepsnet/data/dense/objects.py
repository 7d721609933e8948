"""From an annotated picture to a training sample: resized, cut, flipped, with its boxes and masks along.

Legend: H, W height and width that reach the model, M objects of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepsnet.data.dense.coco import AnnotatedPicture, ObjectSplit, decode_mask
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.data.images.datasets import IMAGENET_MEAN, IMAGENET_STD, Skipper
from stepsnet.data.rng import mix
from stepsnet.errors import UsageError
from stepsnet.optional import require

STEP = 32  # between the short sides of multi-scale training
SMALLEST = 1.0  # side of a box that is still learned after a cut, in pixels


class ObjectSample(NamedTuple):
    sample_id: int
    image: Tensor
    """(3, H, W), normalised."""
    boxes: Tensor
    """(M, 4) corners in pixels of `image`."""
    labels: Tensor
    """(M,) from 1."""
    masks: Tensor
    """(M, H, W) of 0 and 1; (M, 0, 0) where masks are not wanted."""


@dataclass(frozen=True)
class View:
    """How a picture is seen: resized to `size` (height, width), the rectangle from `corner` cut out of that, flipped or not."""

    size: tuple[int, int]
    corner: tuple[int, int]
    window: tuple[int, int]
    flip: bool


def fitted(height: int, width: int, short: int, long: int) -> tuple[int, int]:
    """The size with a short side of `short`, or less where the long side would exceed `long`."""
    factor = min(short / min(height, width), long / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def choose_view(height: int, width: int, img_size: int, max_size: int, augment: AugmentConfig | None, seed: int) -> View:
    """What the configuration and `seed` make of a picture of this size; without `augment` the plain resize of validation."""
    if augment is None:
        size = fitted(height, width, img_size, max_size)
        return View(size, (0, 0), size, False)
    flip = uniform(seed, 0) < augment.flip
    if augment.scale != (1.0, 1.0):  # large-scale jitter: the picture fills a square of img_size × factor, of which img_size is seen
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
    """A number of [0, 1) for one use of the sample's seed."""
    return mix(seed, use) / 2**63


class ObjectDataset:
    """Samples by (epoch, index). Crowds are left out; so are objects of which a cut leaves nothing."""

    def __init__(
        self, split: ObjectSplit, augment: AugmentConfig | None, *, img_size: int, max_size: int, masks: bool, seed: int, strict: bool
    ) -> None:
        self.split, self.augment, self.masks, self.seed = split, augment, masks, seed
        self.img_size, self.max_size = img_size, max_size
        self._reader = Skipper(split.source, strict)

    def __len__(self) -> int:
        return len(self.split.pictures)

    @property
    def skipped(self) -> int:
        """How many different pictures were unreadable so far, over all loader workers of this process."""
        return self._reader.skipped

    def __getitem__(self, key: tuple[int, int]) -> ObjectSample | None:
        epoch, index = key
        image = self._reader.read(index)
        if image is None:
            return None
        picture = self.split.pictures[index]
        if image.size != (picture.width, picture.height):
            name, said = picture.file_name, f"{picture.width}×{picture.height}"
            raise UsageError(f"{name} (image {picture.image_id}) is {image.size[0]}×{image.size[1]}, but its annotations say {said}.")
        view = choose_view(picture.height, picture.width, self.img_size, self.max_size, self.augment, mix(self.seed, epoch, index))
        boxes, labels, masks = self._objects(picture, view)
        return ObjectSample(index, to_input(image, view), boxes, labels, masks)

    def _objects(self, picture: AnnotatedPicture, view: View) -> tuple[Tensor, Tensor, Tensor]:
        objects = [each for each in picture.objects if not each.crowd]
        down, across = view.size[0] / picture.height, view.size[1] / picture.width
        corners = np.array([each.box for each in objects], dtype=np.float64).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        corners = corners * (across, down, across, down) - (view.corner[1], view.corner[0]) * 2
        corners = corners.clip(0, (view.window[1], view.window[0]) * 2)
        seen = ((corners[:, 2:] - corners[:, :2]) >= SMALLEST).all(axis=1)
        masks = np.zeros((len(objects), *(view.window if self.masks else (0, 0))), dtype=np.uint8)
        if self.masks:
            for place, each in zip(masks, objects, strict=True):
                place[:] = look(decode_mask(each.segmentation, picture.height, picture.width), view)
            seen &= masks.any(axis=(1, 2))
        if view.flip:
            corners[:, [0, 2]] = view.window[1] - corners[:, [2, 0]]
        labels = np.array([each.label for each in objects], dtype=np.int64)
        return torch.from_numpy(corners[seen]).float(), torch.from_numpy(labels[seen]), torch.from_numpy(masks[seen])


def to_input(image: Any, view: View, colours: Sequence[float] = (1.0, 1.0, 1.0)) -> Tensor:
    """A Pillow image as the model takes it: (3, H, W), normalised; `colours` are factors of brightness, contrast and saturation."""
    pillow = require("PIL.Image", extra="vision")
    rows, columns = view.size
    if image.size != (columns, rows):
        image = image.resize((columns, rows), pillow.Resampling.BILINEAR)
    pixels = _window(np.asarray(image), view)
    tensor = torch.from_numpy(np.array(pixels)).permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
    if tuple(colours) != (1.0, 1.0, 1.0):
        brightness, contrast, saturation = colours
        tensor = (tensor * brightness).clamp_(0, 255)
        tensor = tensor.mean().lerp(tensor, torch.tensor(contrast)).clamp_(0, 255)
        tensor = tensor.mean(dim=0, keepdim=True).lerp(tensor, torch.tensor(saturation)).clamp_(0, 255)
    mean, std = (torch.tensor(values).view(3, 1, 1) * 255 for values in (IMAGENET_MEAN, IMAGENET_STD))
    return tensor.sub_(mean).div_(std)


def look(values: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    """A map of labels (height, width) through the same view: each pixel takes the value of the nearest."""
    rows, columns = ((np.arange(new) + 0.5) * old / new for new, old in zip(view.size, values.shape, strict=True))
    return _window(values[rows.astype(np.int64)[:, None], columns.astype(np.int64)[None]], view)


def _window(pixels: NDArray[np.uint8], view: View) -> NDArray[np.uint8]:
    top, left = view.corner
    cut = pixels[top : top + view.window[0], left : left + view.window[1]]
    return cut[:, ::-1] if view.flip else cut
