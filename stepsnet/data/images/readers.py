"""Image data sets: class folders (ImageNet, own images), Tiny ImageNet, CIFAR-10, Fashion-MNIST, digits."""

from __future__ import annotations

import gzip
import io
import itertools
import logging
import math
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepsnet.data.config import TRAINED_ON, DataConfig, refuse_unused_root
from stepsnet.data.images.datasets import IMAGENET_MEAN, IMAGENET_STD, ArraySource, FileSource, LabelledImages
from stepsnet.errors import UsageError
from stepsnet.optional import require

log = logging.getLogger("stepsnet.data")

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
VALID_FOLDERS = ("val", "valid", "validation", "test")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DIGITS_TRAIN = 1437  # of 1797: images are ordered by writer, so that validation has other writers than training


def load_image_folder(config: DataConfig) -> LabelledImages:
    """Images in one folder per class.

    `root` has `train` and `val` (or `valid`, `validation`, `test`), each with one folder per class, as in ImageNet. Or
    it has the class folders themselves; then `valid_fraction` of each class is for validation, the same images for
    every seed.
    """
    train_folder, valid_folder = image_folders(config)
    classes = _class_names(train_folder)
    train = _scan(train_folder, classes)
    if valid_folder is None:
        valid_folder = train_folder
        train, valid = _split_by_name(train, config.valid_fraction)
    else:
        valid = _scan(valid_folder, classes)
        if valid_folder.samefile(train_folder):
            log.warning(TRAINED_ON, config.valid, train_folder)
    sources = FileSource(train_folder, train), FileSource(valid_folder, valid)
    name = str(Path(config.root).expanduser())
    return LabelledImages(name, tuple(classes), IMAGENET_MEAN, IMAGENET_STD, *sources)


def image_folders(config: DataConfig) -> tuple[Path, Path | None]:
    """The folders of training and validation; None if the images of the first are split."""
    root = _folder(config.root, "a folder with one folder of images per class")
    train_folder = root / "train" if (root / "train").is_dir() else root
    if config.valid:
        return train_folder, _folder(config.valid, "the validation images, one folder per class")
    return train_folder, None if train_folder == root else _valid_folder(root)


def load_tiny_imagenet(config: DataConfig) -> LabelledImages:
    """Tiny ImageNet as distributed: train/<class>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt."""
    root = _folder(config.root, "the folder tiny-imagenet-200")
    root = root / "tiny-imagenet-200" if (root / "tiny-imagenet-200").is_dir() else root
    train_folder, images, listing = root / "train", root / "val" / "images", root / "val" / "val_annotations.txt"
    classes = _class_names(train_folder)
    numbers = {name: number for number, name in enumerate(classes)}
    if not listing.is_file():
        raise UsageError(f"{listing} is missing; it has the class of each validation image.")
    valid = []
    for number, line in enumerate(listing.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in numbers:
            raise UsageError(f"{listing}, line {number}: {line[:60]!r} names no class of {train_folder}.")
        valid.append((fields[0], numbers[fields[1]]))
    sources = FileSource(train_folder, _scan(train_folder, classes)), FileSource(images, valid)
    return LabelledImages("tiny_imagenet", tuple(classes), IMAGENET_MEAN, IMAGENET_STD, *sources)


def _folder(path: str, what: str) -> Path:
    if not path:
        raise UsageError(f"data.root is missing: give {what}.")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{path} is not a folder, but should be {what}.")
    return folder


def _valid_folder(root: Path) -> Path:
    for name in VALID_FOLDERS:
        if (root / name).is_dir():
            return root / name
    raise UsageError(f"{root} has train, but none of {', '.join(VALID_FOLDERS)}; data.valid=FOLDER names another.")


def _class_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} is missing.")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UsageError(f"{folder} has no folders; there should be one per class.")
    return names


def _scan(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    """(name relative to `folder`, label) of every image, by label. Each class folder must be known and have images."""
    numbers = {name: number for number, name in enumerate(classes)}
    found: list[tuple[str, int]] = []
    for class_name in _class_names(folder):
        if class_name not in numbers:
            raise UsageError(f"{folder} has the class {class_name!r}, which the training data do not have.")
        before = len(found)
        for current, subfolders, files in os.walk(folder / class_name, followlinks=True):
            subfolders.sort()
            prefix = os.path.relpath(current, folder)
            images = (
                file for file in sorted(files) if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith(".")
            )
            found += [(f"{prefix}/{file}", numbers[class_name]) for file in images]
        if len(found) == before:
            raise UsageError(f"the class folder {folder / class_name} has no images ({', '.join(IMAGE_SUFFIXES)}).")
    return found


def _split_by_name(
    samples: list[tuple[str, int]], fraction: float
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Split each class by a hash of the names, so that all runs are evaluated on the same images."""
    train, valid = [], []
    for _, group in itertools.groupby(samples, key=lambda sample: sample[1]):
        members = list(group)
        if len(members) < 2:
            raise UsageError(f"the class of {members[0][0]} has one image, but training and validation need one each.")
        members.sort(key=lambda member: zlib.crc32(os.fsencode(member[0])))
        count = min(max(round(len(members) * fraction), 1), len(members) - 1)
        valid += sorted(members[:count])
        train += sorted(members[count:])
    return train, valid


def load_cifar10(config: DataConfig) -> LabelledImages:
    """CIFAR-10 from one `.npz` (train_images, train_labels, test_images, …), or the folder of python batches."""
    root = _existing(config, "an .npz file or the folder cifar-10-batches-py")
    train, valid = _cifar10_batches(root) if root.is_dir() else _cifar10_npz(root)
    return LabelledImages("cifar10", CIFAR10_CLASSES, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), train, valid)


def load_fashion_mnist(config: DataConfig) -> LabelledImages:
    """Fashion-MNIST from its four idx files, `.gz` or not, below the folder; padded with black for 32×32."""
    root = _existing(config, "the folder of the four idx files")
    splits = []
    for prefix in ("train", "t10k"):
        images = read_idx(_idx_file(root, f"{prefix}-images-idx3-ubyte"))
        labels = read_idx(_idx_file(root, f"{prefix}-labels-idx1-ubyte"))
        if images.ndim != 3:
            raise UsageError(f"{root}: {prefix}-images-idx3-ubyte has {images.ndim} dimensions, but must have 3.")
        border = black_border(config, images.shape[1:])
        images = np.pad(images, ((0, 0), (border, border), (border, border)))
        splits.append(_source(images[..., None], labels, f"{root}, {prefix}"))
    return LabelledImages("fashion_mnist", FASHION_CLASSES, (0.2860,), (0.3530,), *splits)


def black_border(config: DataConfig, size: tuple[int, ...]) -> int:
    """Pixels of black on each side of an image of this size: Fashion-MNIST is padded to 32×32, not resized."""
    return 2 if config.kind == "fashion_mnist" and config.img_size == 32 and size == (28, 28) else 0


def load_digits(config: DataConfig) -> LabelledImages:
    """scikit-learn's 1797 digits of 8×8, resized to `img_size`."""
    data = require("sklearn.datasets", extra="vision").load_digits()
    images = torch.from_numpy(data.images[:, None] * (255 / 16))
    if config.img_size != images.shape[-1]:
        images = torch.nn.functional.interpolate(
            images, size=(config.img_size, config.img_size), mode="bilinear", align_corners=False
        )
    pixels = images.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    splits = [
        _source(pixels[part], data.target[part], "digits") for part in (slice(DIGITS_TRAIN), slice(DIGITS_TRAIN, None))
    ]
    return LabelledImages("digits", tuple(map(str, range(10))), (0.3053,), (0.3760,), *splits)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: 0, 0, 8, number of dimensions, each size as four bytes, then the values."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as reason:
        raise UsageError(f"cannot read {path}: {reason}.") from reason
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise UsageError(f"{path} is not an idx file of unsigned bytes.")
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if len(data) != start + math.prod(shape):
        raise UsageError(f"{path} has {len(data)} bytes, but its header says {start + math.prod(shape)}.")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def _existing(config: DataConfig, what: str) -> Path:
    if not config.root:
        raise UsageError(f"data.root is missing: give {what} of {config.kind}.")
    root = Path(config.root).expanduser()
    if not root.exists():
        raise UsageError(f"data.root={config.root} does not exist; it should be {what}.")
    return root


def _source(images: NDArray[Any], labels: NDArray[Any], where: str) -> ArraySource:
    """Check that images and labels match."""
    if images.dtype != np.uint8 or images.ndim != 4:
        raise UsageError(f"{where}: images are {images.dtype} with {images.ndim} dimensions, but must be uint8 with 4.")
    if labels.shape != images.shape[:1]:
        raise UsageError(f"{where}: {len(images)} images, but labels of shape {labels.shape}.")
    return ArraySource(images, labels.astype(np.int64))


def _cifar10_npz(path: Path) -> tuple[ArraySource, ArraySource]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("train_images", "train_labels", "test_images", "test_labels")}
    except KeyError as missing:
        raise UsageError(
            f"{path}: {missing.args[0]}; it needs train_images, train_labels, test_images and test_labels."
        ) from missing
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as reason:
        why = "it is not a zip archive" if "allow_pickle" in str(reason) else reason
        raise UsageError(f"{path} cannot be read as an .npz file: {why}.") from reason
    return (
        _source(arrays["train_images"], arrays["train_labels"], f"{path}, train"),
        _source(arrays["test_images"], arrays["test_labels"], f"{path}, test"),
    )


def _cifar10_batches(root: Path) -> tuple[ArraySource, ArraySource]:
    folder = root / "cifar-10-batches-py" if (root / "cifar-10-batches-py").is_dir() else root
    batches = [_read_batch(folder / f"data_batch_{number}") for number in range(1, 6)]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return _source(images, labels, f"{folder}, train"), _source(*_read_batch(folder / "test_batch"), f"{folder}, test")


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One python batch: images as rows of 3072 bytes, channel by channel."""
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        rows, labels = np.asarray(content[b"data"], dtype=np.uint8), np.asarray(content[b"labels"], dtype=np.int64)
        return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(), labels
    except FileNotFoundError as reason:
        wanted = "data.root should be an .npz file or the folder cifar-10-batches-py"
        raise UsageError(f"There is no {path.name} in {path.parent.absolute()}; {wanted}.") from reason
    except (
        OSError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        ImportError,
        IndexError,
        pickle.UnpicklingError,
    ) as reason:
        raise UsageError(f"{path} cannot be read as a CIFAR-10 python batch: {reason!r}.") from reason


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that can only build numpy arrays and plain containers. Other pickles can run any code."""

    allowed = frozenset(
        {("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("numeric", "_frombuffer")}
    )

    def find_class(self, module: str, name: str) -> Any:
        # numpy renamed numpy.core to numpy._core; both have the same functions.
        inside = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (inside, name) not in self.allowed or (inside != "numpy") != module.startswith("numpy."):
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which is not allowed in a batch")
        return super().find_class("numpy" if inside == "numpy" else f"numpy._core.{inside}", name)


def _idx_file(root: Path, name: str) -> Path:
    found = sorted(path for path in root.rglob(f"{name}*") if path.name in (name, f"{name}.gz"))
    if not found:
        raise UsageError(f"there is no {name} or {name}.gz below {root}.")
    return found[0]


READERS: dict[str, Callable[[DataConfig], LabelledImages]] = {
    "image_folder": load_image_folder,
    "tiny_imagenet": load_tiny_imagenet,
    "cifar10": load_cifar10,
    "fashion_mnist": load_fashion_mnist,
    "digits": load_digits,
}


def load_images(config: DataConfig) -> LabelledImages:
    """The image data set of `config`, checked; a UsageError says what is wrong with it."""
    if config.kind not in READERS:
        raise UsageError(f"data.kind={config.kind} is not an image data set; those are {', '.join(READERS)}.")
    refuse_unused_root(config)
    return READERS[config.kind](config)
