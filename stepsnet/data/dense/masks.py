"""Images with segmentation masks: files of the same name in two folders, checked before training.

Layouts: `images/training` and `annotations/training` (ADE20K); `train/images` and `train/masks`; `images` and `masks`
with the lists `train.txt` and `val.txt` (or `trainval.txt` and `test.txt`); or no lists, then `valid_fraction` is for
validation. `data.images` and `data.masks` name other folders. A mask is one channel of bytes (or a palette);
`data.mask_values` has the value of each class.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepsnet.data.config import AugmentConfig, DataConfig, mix
from stepsnet.data.dense.objects import View, apply_view, fitted, to_input, uniform
from stepsnet.data.images.datasets import FileSource, SkippingReader
from stepsnet.data.images.readers import IMAGE_SUFFIXES
from stepsnet.errors import UsageError
from stepsnet.optional import require

VOID = 255
"""The label of pixels that do not count in training and evaluation."""
ILLEGAL = 254
CHECKED = 64
"""Number of masks checked before training, evenly spread; the others are checked when they are read."""
IMAGE_FOLDERS, MASK_FOLDERS = ("images", "JPEGImages"), ("masks", "annotations", "labels", "SegmentationClass")
PARTS = {"train": ("training", "train"), "valid": ("validation", "val", "valid", "test")}
LISTS = {"train": ("train.txt", "trainval.txt"), "valid": ("val.txt", "valid.txt", "test.txt")}
LARGEST_SHARE = 0.75  # of a crop that one class may fill, if one of ten random crops satisfies it


@dataclass(frozen=True)
class MaskSplit:
    """The images of one split and their masks, in pairs."""

    images: FileSource
    masks: tuple[Path, ...]


@dataclass(frozen=True)
class MaskedImages:
    """A data set; `table` maps the 256 values of a mask to classes, VOID or ILLEGAL."""

    name: str
    classes: tuple[str, ...]
    table: NDArray[np.uint8]
    train: MaskSplit
    valid: MaskSplit


def load_mask_folder(config: DataConfig) -> MaskedImages:
    """Find images and masks, pair them, and check sizes and values."""
    if config.kind != "mask_folder":
        raise UsageError(f"data.kind={config.kind} has no segmentation masks; use data.kind=mask_folder.")
    root = Path(config.root).expanduser()
    if not config.root or not root.is_dir():
        raise UsageError(f"data.root={config.root!r} is not a folder, but must contain images and their masks.")
    train, valid = _pairs(root, config)
    classes, values = _classes(root, config, train[:CHECKED])
    table = np.full(256, ILLEGAL, dtype=np.uint8)
    table[config.void_values] = VOID
    table[values] = np.arange(len(values))
    for image, mask in (*train, *valid):
        _check_sizes(image, mask)
    for split in (train, valid):
        for _, mask in split[:: max(1, len(split) // CHECKED)]:
            read_labels(mask, table)
    return MaskedImages(str(root), classes, table, _split(root, train), _split(root, valid))


def _split(root: Path, pairs: list[tuple[Path, Path]]) -> MaskSplit:
    return MaskSplit(
        FileSource(root, [(os.path.relpath(image, root), 0) for image, _ in pairs]), tuple(mask for _, mask in pairs)
    )


def _classes(root: Path, config: DataConfig, some: list[tuple[Path, Path]]) -> tuple[tuple[str, ...], list[int]]:
    names = list(config.class_names)
    if not names and (root / "classes.txt").is_file():
        names = (root / "classes.txt").read_text(encoding="utf-8").split("\n")
        names = [name.strip() for name in names if name.strip()]
    values = list(config.mask_values) or list(range(len(names)))
    if not values:
        found = sorted({int(value) for _, mask in some[:8] for value in np.unique(_bytes(mask))})
        raise UsageError(f"set data.mask_values or data.class_names; the first masks have the values {found}.")
    names = names or [str(value) for value in values]
    if len(names) != len(values) or len(values) < 2:
        raise UsageError(f"there are {len(names)} names for {len(values)} classes; both must be equal and at least 2.")
    unique: dict[str, list[Any]] = {"the class names": names, "data.mask_values": values}
    for what, given in unique.items():
        if (twice := next((each for each in given if given.count(each) > 1), None)) is not None:
            raise UsageError(f"{twice} is among {what} twice; every class needs its own.")
    if not all(0 <= value < 256 for value in (*values, *config.void_values)) or len(values) > ILLEGAL:
        raise UsageError(f"data.mask_values and data.void_values must be between 0 and 255, at most {ILLEGAL} classes.")
    if both := set(values) & set(config.void_values):
        raise UsageError(f"{min(both)} is the value of a class and in data.void_values: a class cannot be void.")
    return tuple(names), values


def _pairs(root: Path, config: DataConfig) -> tuple[list[tuple[Path, Path]], list[tuple[Path, Path]]]:
    if (places := mask_places(config)) is not None:
        train, valid = places
        if train.is_file():
            return _paired(root, "", config, _names(train)), _paired(root, "", config, _names(valid))
        if train.parent == root:
            return _paired(train, "", config, None), _paired(valid, "", config, None)
        return _paired(root, train.name, config, None), _paired(root, valid.name, config, None)
    everything = sorted(_paired(root, "", config, None), key=lambda pair: zlib.crc32(os.fsencode(pair[0].name)))
    if len(everything) < 2:
        raise UsageError(f"{root} has {len(everything)} image, but training and validation need one each.")
    count = min(max(round(len(everything) * config.valid_fraction), 1), len(everything) - 1)
    return sorted(everything[count:]), sorted(everything[:count])


def mask_places(config: DataConfig) -> tuple[Path, Path] | None:
    """The folders or lists that separate training from validation; None if there are none."""
    root = Path(config.root).expanduser()
    for train_part, valid_part in ((a, b) for a in PARTS["train"] for b in PARTS["valid"]):
        for folder in (root, root / (config.images or "images")):
            if (folder / train_part).is_dir() and (folder / valid_part).is_dir():
                return folder / train_part, folder / valid_part
    train, valid = (
        next((root / name for name in LISTS[part] if (root / name).is_file()), None) for part in ("train", "valid")
    )
    return None if train is None or valid is None else (train, valid)


def _names(path: Path) -> list[str]:
    """The first word of each line."""
    return [
        line.split()[0]
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]


def _paired(root: Path, part: str, config: DataConfig, names: list[str] | None) -> list[tuple[Path, Path]]:
    images = _folder(root, config.images, IMAGE_FOLDERS, "data.images") / part
    masks = _folder(root, config.masks, MASK_FOLDERS, "data.masks") / part
    of_name = {
        file.stem: file
        for file in masks.iterdir()
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    }
    found = {
        file.stem: file
        for file in sorted(images.iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    }
    wanted = (
        list(found)
        if names is None
        else [name.rpartition(".")[0] if name.lower().endswith(IMAGE_SUFFIXES) else name for name in names]
    )
    for name in wanted:
        if name not in found:
            raise UsageError(f"{images} has no image {name}, which is in the list.")
        if name not in of_name:
            raise UsageError(f"{found[name]} has no mask in {masks}.")
    if not wanted:
        raise UsageError(f"{images} has no images.")
    return [(found[name], of_name[name]) for name in wanted]


def _folder(root: Path, given: str, names: tuple[str, ...], key: str) -> Path:
    for name in (given,) if given else names:
        if (root / name).is_dir():
            return root / name
    raise UsageError(f"{root} has no folder {given or ' or '.join(names)}; {key}=FOLDER names it.")


def _check_sizes(image: Path, mask: Path) -> None:
    """Compare the sizes in the headers. Unreadable files are left to the reader, which counts them."""
    pillow = require("PIL.Image", extra="vision")
    try:
        with pillow.open(image) as opened, pillow.open(mask) as labels:
            if opened.size != labels.size:
                sizes = [f"{width}×{height}" for width, height in (labels.size, opened.size)]
                raise UsageError(f"the mask {mask} is {sizes[0]}, but its image {image} is {sizes[1]}.")
    except (OSError, SyntaxError, struct.error, zlib.error):
        return


def _bytes(path: Path) -> NDArray[np.uint8]:
    pillow = require("PIL.Image", extra="vision")
    try:
        with pillow.open(path) as mask:
            if mask.mode not in ("L", "P", "1"):
                raise UsageError(f"the mask {path} has mode {mask.mode}, but needs one channel of bytes or a palette.")
            return np.asarray(mask, dtype=np.uint8)
    except (OSError, SyntaxError, struct.error, zlib.error) as reason:
        raise UsageError(f"the mask {path} cannot be read: {reason}") from reason


def read_labels(path: Path, table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The classes of a mask's pixels; values that are neither a class nor void are refused."""
    values = _bytes(path)
    labels = table[values]
    if (labels == ILLEGAL).any():
        value = int(values[labels == ILLEGAL][0])
        classes = int((table < ILLEGAL).sum())
        allowed = f"one of the {classes} classes (data.mask_values) nor void (data.void_values)"
        raise UsageError(f"the mask {path} has the value {value}, which is neither {allowed}.")
    return labels


class MaskedSample(NamedTuple):
    sample_id: int
    image: Tensor
    """(3, H, W), normalised."""
    labels: Tensor
    """Classes or void: (H, W) in training, the original image's size in validation."""


class MaskedDataset:
    """Samples by (epoch, index): in training a crop of `img_size`, in validation the whole image."""

    def __init__(
        self, split: MaskSplit, table: NDArray[np.uint8], augment: AugmentConfig | None, *, img_size: int,
        max_size: int, seed: int, strict: bool,
    ) -> None:
        self.split, self.table, self.augment, self.seed = split, table, augment, seed
        self.img_size, self.max_size = img_size, max_size
        self._reader = SkippingReader(split.images, strict)

    def __len__(self) -> int:
        return len(self.split.masks)

    @property
    def skipped(self) -> int:
        """Number of unreadable images so far, over all loader workers of this process."""
        return self._reader.skipped

    def __getitem__(self, key: tuple[int, int]) -> MaskedSample | None:
        epoch, index = key
        image = self._reader.read(index)
        if image is None:
            return None
        labels = read_labels(self.split.masks[index], self.table)
        if self.augment is None:
            size = fitted(labels.shape[0], labels.shape[1], self.img_size, self.max_size)
            return MaskedSample(
                index, to_input(image, View(size, (0, 0), size, False)), torch.from_numpy(labels.copy())
            )
        seed = mix(self.seed, epoch, index)
        view = self._crop(labels, self.augment, seed)
        colours = [1 + self.augment.color_jitter * (2 * uniform(seed, 90 + use) - 1) for use in range(3)]
        seen = np.ascontiguousarray(apply_view(labels, view))
        return MaskedSample(index, to_input(image, view, colours), torch.from_numpy(seen))

    def _crop(self, labels: NDArray[np.uint8], augment: AugmentConfig, seed: int) -> View:
        """A random scale, then a random crop in which no class fills more than LARGEST_SHARE, if one is found."""
        low, high = augment.scale
        factor = low + (high - low) * uniform(seed, 1)
        limits = max(1, round(self.img_size * factor)), max(1, round(self.max_size * factor))
        size = fitted(labels.shape[0], labels.shape[1], *limits)
        window = (min(size[0], self.img_size), min(size[1], self.img_size))
        flip = uniform(seed, 0) < augment.flip
        view = View(size, (0, 0), window, flip)
        for attempt in range(10):
            top, left = (
                int(uniform(seed, 2 + 2 * attempt + axis) * (size[axis] - window[axis] + 1)) for axis in (0, 1)
            )
            view = View(size, (top, left), window, flip)
            counts = np.bincount(apply_view(labels, view).ravel(), minlength=256)[:ILLEGAL]
            if window == size or counts.max() <= LARGEST_SHARE * counts.sum():
                break
        return view
