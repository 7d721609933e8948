"""Pictures in folders: one folder a class (ImageNet, anybody's pictures), and Tiny ImageNet's own layout."""

from __future__ import annotations

import itertools
import os
import zlib
from pathlib import Path

from stepsnet.data.config import DataConfig
from stepsnet.data.images.datasets import IMAGENET_MEAN, IMAGENET_STD, FileSource, Pictures
from stepsnet.errors import UsageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
VALID_NAMES = ("val", "valid", "validation", "test")


def load_image_folder(config: DataConfig) -> Pictures:
    """Pictures in one folder a class.

    `root` holds `train` and `val` (or `valid`, `validation`, `test`), each with a folder a class, as ImageNet does; or it holds the
    class folders themselves, and `valid_fraction` of each class is set aside, the same pictures whatever the run's seed.
    """
    root = _folder(config.root, "a folder with one folder of pictures for each class")
    train_folder = root / "train" if (root / "train").is_dir() else root
    classes = _class_names(train_folder)
    train = _scan(train_folder, classes)
    if config.valid:
        valid_folder = _folder(config.valid, "the validation pictures, one folder for each class")
    else:
        valid_folder = train_folder if train_folder == root else _beside_train(root)
    if valid_folder == train_folder:
        train, valid = _set_aside(train, config.valid_fraction)
    else:
        valid = _scan(valid_folder, classes)
    sources = FileSource(train_folder, train), FileSource(valid_folder, valid)
    return Pictures(str(root), tuple(classes), IMAGENET_MEAN, IMAGENET_STD, *sources)


def load_tiny_imagenet(config: DataConfig) -> Pictures:
    """Tiny ImageNet as it is distributed: train/<class>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt."""
    root = _folder(config.root, "the folder tiny-imagenet-200")
    root = root / "tiny-imagenet-200" if (root / "tiny-imagenet-200").is_dir() else root
    train_folder, images, listing = root / "train", root / "val" / "images", root / "val" / "val_annotations.txt"
    classes = _class_names(train_folder)
    numbers = {name: number for number, name in enumerate(classes)}
    if not listing.is_file():
        raise UsageError(f"{listing} is missing, which names the class of each validation picture.")
    valid = []
    for number, line in enumerate(listing.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in numbers:
            raise UsageError(f"{listing}, line {number}: {line[:60]!r} names no class of {train_folder}.")
        valid.append((fields[0], numbers[fields[1]]))
    sources = FileSource(train_folder, _scan(train_folder, classes)), FileSource(images, valid)
    return Pictures("tiny_imagenet", tuple(classes), IMAGENET_MEAN, IMAGENET_STD, *sources)


def _folder(path: str, what: str) -> Path:
    if not path:
        raise UsageError(f"data.root is missing: give {what}.")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{path} is not a folder, but should be {what}.")
    return folder


def _beside_train(root: Path) -> Path:
    for name in VALID_NAMES:
        if (root / name).is_dir():
            return root / name
    raise UsageError(f"{root} has the folder train, but none of {', '.join(VALID_NAMES)}; data.valid=FOLDER can name another.")


def _class_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} is missing.")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UsageError(f"{folder} has no folders; there should be one for each class.")
    return names


def _scan(folder: Path, classes: list[str]) -> list[tuple[str, int]]:
    """(name relative to `folder`, label) of every picture, label by label; each class folder must be known and have pictures."""
    numbers = {name: number for number, name in enumerate(classes)}
    found: list[tuple[str, int]] = []
    for class_name in _class_names(folder):
        if class_name not in numbers:
            raise UsageError(f"{folder} has the class {class_name!r}, which the training pictures do not have.")
        before = len(found)
        for place, subfolders, files in os.walk(folder / class_name, followlinks=True):
            subfolders.sort()
            prefix = os.path.relpath(place, folder)
            pictures = (file for file in sorted(files) if file.lower().endswith(SUFFIXES) and not file.startswith("."))
            found += [(f"{prefix}/{file}", numbers[class_name]) for file in pictures]
        if len(found) == before:
            raise UsageError(f"the class folder {folder / class_name} has no pictures ({', '.join(SUFFIXES)}).")
    return found


def _set_aside(samples: list[tuple[str, int]], fraction: float) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Split each class by a shuffle of its names, so that every run is judged on the same pictures, whatever its seed."""
    train, valid = [], []
    for _, group in itertools.groupby(samples, key=lambda sample: sample[1]):
        members = list(group)
        if len(members) < 2:
            raise UsageError(f"the class of {members[0][0]} has one picture, but training and validation need one each.")
        members.sort(key=lambda member: zlib.crc32(os.fsencode(member[0])))
        count = min(max(round(len(members) * fraction), 1), len(members) - 1)
        valid += sorted(members[:count])
        train += sorted(members[count:])
    return train, valid
