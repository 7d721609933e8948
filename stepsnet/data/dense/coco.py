"""Annotated objects in COCO's format, checked completely before training, and masks by pycocotools.

Errors are refused with file and id: an annotation of an unknown image or category, a missing image, an invalid box, a
mask of another size than its image. Common irregularities are corrected and counted: boxes are clipped to the image;
boxes without area and empty masks are left out; crowds count in evaluation but not in training. Category ids may have
gaps, and images may have no objects.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepsnet.data.config import DataConfig
from stepsnet.data.images.datasets import FileSource
from stepsnet.errors import UsageError
from stepsnet.optional import require

log = logging.getLogger("stepsnet.data")

TRAIN_NAMES = (
    "annotations/instances_train2017.json",
    "annotations/instances_train.json",
    "annotations_train.json",
    "train.json",
    "train/_annotations.coco.json",
)
VALID_NAMES = (
    "annotations/instances_val2017.json",
    "annotations/instances_val.json",
    "annotations_val.json",
    "val.json",
    "valid/_annotations.coco.json",
)
FOLDER_NAMES = (
    "images",
    "JPEGImages",
    "train2017",
    "val2017",
    "train",
    "val",
    "valid",
    "images/train2017",
    "images/val2017",
    ".",
)


@dataclass(frozen=True)
class Object:
    """One object: box as x, y, width and height inside the image, label (from 1), mask as stored by COCO."""

    box: tuple[float, float, float, float]
    label: int
    segmentation: Any
    crowd: bool
    area: float


@dataclass(frozen=True)
class AnnotatedImage:
    image_id: int
    file_name: str
    height: int
    width: int
    objects: tuple[Object, ...]


@dataclass(frozen=True)
class ObjectSplit:
    """The images of one split with their objects, in the order of the file. `counts` has the numbers of corrections."""

    images: tuple[AnnotatedImage, ...]
    source: FileSource
    counts: dict[str, int]


@dataclass(frozen=True)
class Objects:
    """A data set of objects. Label k is category `category_ids[k − 1]`, called `classes[k − 1]`."""

    name: str
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    train: ObjectSplit
    valid: ObjectSplit


def load_coco(config: DataConfig, *, masks: bool) -> Objects:
    """Training and validation data below `config.root`; with `masks`, objects without a mask are left out."""
    if config.kind != "coco":
        raise UsageError(f"data.kind={config.kind} has no annotated objects; use data.kind=coco.")
    root = Path(config.root).expanduser()
    if not config.root or not root.is_dir():
        raise UsageError(f"data.root={config.root!r} is not a folder of images and annotations in COCO's format.")
    train_file = _find(root, config.annotations, TRAIN_NAMES, "data.annotations")
    valid_file = _find(root, config.valid_annotations, VALID_NAMES, "data.valid_annotations")
    train_document, valid_document = _read(train_file), _read(valid_file)
    categories = _categories(train_file, train_document)
    train = _Reader(train_file, root, config.images, categories, masks).split(train_document)
    valid = _Reader(valid_file, root, config.images, categories, masks).split(valid_document)
    if not any(image.objects for image in train.images):
        raise UsageError(f"{train_file} has no objects for training ({_in_words(train.counts)}).")
    for part, split in (("training", train), ("validation", valid)):
        if odd := _in_words(split.counts):
            log.warning("%s data: %s", part, odd)
    return Objects(str(root), tuple(categories.values()), tuple(categories), train, valid)


def _find(root: Path, given: str, names: Iterable[str], key: str) -> Path:
    candidates = [given] if given else list(names)
    for name in candidates:
        if (root / name).is_file():
            return root / name
    raise UsageError(f"{root} has none of {', '.join(candidates)}; {key}=FILE names the annotations.")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not JSON ({error}).") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(document, dict) or not isinstance(document.get(key), list):
            raise UsageError(f"{path} is not in COCO's format: it has no list of {key}.")
        if odd := [entry for entry in document[key] if not isinstance(entry, dict)]:
            raise UsageError(f"{path} is not in COCO's format: {odd[0]!r} in its {key} is not an object.")
    for category in document["categories"]:
        if not isinstance(category.get("id"), int):
            raise UsageError(f"{path}: the id of the category {category} is not a whole number.")
    for image in document["images"]:
        if not {"id", "file_name", "height", "width"} <= image.keys():
            raise UsageError(f"{path}: the image {image} lacks one of id, file_name, height and width.")
        if not (isinstance(image["height"], int) and isinstance(image["width"], int)):
            raise UsageError(f"{path}: height or width of the image {image} is not a whole number.")
    return document


def _categories(path: Path, document: Mapping[str, Any]) -> dict[int, str]:
    """Names by id, in the order of the ids, which may have gaps."""
    found = {entry["id"]: str(entry.get("name", entry["id"])) for entry in document["categories"]}
    if not found:
        raise UsageError(f"{path} has no categories.")
    return dict(sorted(found.items()))


@dataclass
class _Reader:
    """Reads and checks one annotation file."""

    path: Path
    root: Path
    images: str
    categories: dict[int, str]
    masks: bool
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("crowd", "cut", "no_area", "no_mask", "empty"), 0)
    )

    def split(self, document: Mapping[str, Any]) -> ObjectSplit:
        labels = {category: label for label, category in enumerate(self.categories, start=1)}
        for category in document["categories"]:
            if category["id"] not in labels:
                raise UsageError(f"{self.path}: category {category['id']} ({category.get('name')}) is not in training.")
        entries = {entry["id"]: entry for entry in document["images"]}
        if len(entries) < len(document["images"]):
            raise UsageError(f"{self.path}: two images have the same id.")
        if not entries:
            raise UsageError(f"{self.path} has no images.")
        objects: dict[int, list[Object]] = {image_id: [] for image_id in entries}
        for annotation in document["annotations"]:
            if annotation.get("image_id") not in entries:
                raise self._error(
                    annotation, f"belongs to image {annotation.get('image_id')}, which is not in the file"
                )
            if annotation.get("category_id") not in labels:
                raise self._error(annotation, f"has category {annotation.get('category_id')}, which is not in the file")
            found = self._object(annotation, entries[annotation["image_id"]], labels[annotation["category_id"]])
            if found is not None:
                objects[annotation["image_id"]].append(found)
        images = tuple(
            AnnotatedImage(image_id, entry["file_name"], entry["height"], entry["width"], tuple(objects[image_id]))
            for image_id, entry in entries.items()
        )
        self.counts["empty"] = sum(not image.objects for image in images)
        folder = self._folder(images)
        return ObjectSplit(images, FileSource(folder, [(image.file_name, 0) for image in images]), dict(self.counts))

    def _folder(self, images: tuple[AnnotatedImage, ...]) -> Path:
        """The folder with the images; all of them must exist."""
        candidates = [self.images] if self.images else [os.path.relpath(self.path.parent, self.root), *FOLDER_NAMES]
        folder = next(
            (self.root / name for name in candidates if (self.root / name / images[0].file_name).is_file()), None
        )
        if folder is None:
            first = f"{images[0].file_name} (image {images[0].image_id})"
            tried = f"is in none of {', '.join(dict.fromkeys(candidates))} below {self.root}"
            raise UsageError(f"{self.path}: {first} {tried}; data.images=FOLDER names another.")
        for image in images:
            if not (folder / image.file_name).is_file():
                raise UsageError(f"{self.path}: {image.file_name} (image {image.image_id}) is missing in {folder}.")
        return folder

    def _object(self, annotation: Mapping[str, Any], entry: Mapping[str, Any], label: int) -> Object | None:
        """The object, or None if it has no area or lacks a needed mask."""
        box = annotation.get("bbox")
        numbers = (
            [side for side in box if isinstance(side, (int, float)) and math.isfinite(side)]
            if isinstance(box, list)
            else []
        )
        if not isinstance(box, list) or not len(box) == len(numbers) == 4:
            raise self._error(annotation, f"has the box {box!r}, which is not four numbers")
        x, y, width, height = map(float, box)
        left, top = min(max(x, 0.0), entry["width"]), min(max(y, 0.0), entry["height"])
        right, bottom = min(max(x + width, 0.0), entry["width"]), min(max(y + height, 0.0), entry["height"])
        if right - left <= 0 or bottom - top <= 0:
            self.counts["no_area"] += 1
            return None
        self.counts["cut"] += max(abs(left - x), abs(top - y), abs(right - x - width), abs(bottom - y - height)) > 1e-3
        segmentation = self._segmentation(annotation, entry)
        crowd = bool(annotation.get("iscrowd", 0))
        if self.masks and segmentation is None:
            self.counts["no_mask"] += 1
            return None
        self.counts["crowd"] += crowd
        area = float(annotation.get("area") or width * height)
        return Object((left, top, right - left, bottom - top), label, segmentation, crowd, area)

    def _segmentation(self, annotation: Mapping[str, Any], entry: Mapping[str, Any]) -> Any:
        """Polygons of at least three corners, or run-length encoding; None if nothing is left."""
        found = annotation.get("segmentation")
        if isinstance(found, list):
            return [each for each in found if isinstance(each, list) and len(each) >= 6 and len(each) % 2 == 0] or None
        if not isinstance(found, Mapping) or "counts" not in found:
            return None
        size = [entry["height"], entry["width"]]
        if list(found.get("size", [])) != size:
            stated = f"{found.get('size')} (height, width)"
            raise self._error(annotation, f"has a mask of {stated}, but image {entry['id']} is {size}")
        counts = found["counts"]
        if isinstance(counts, list):
            if sum(counts) != size[0] * size[1] or any(count < 0 for count in counts):
                raise self._error(annotation, f"has runs that do not add up to {size[0]}×{size[1]} pixels")
            return dict(found) if sum(counts[1::2]) else None
        return dict(found)

    def _error(self, annotation: Mapping[str, Any], problem: str) -> UsageError:
        return UsageError(f"{self.path}: annotation {annotation.get('id')} {problem}.")


def _in_words(counts: Mapping[str, int]) -> str:
    words = {
        "crowd": "crowds (evaluated, not trained on)", "cut": "boxes clipped at the border",
        "no_area": "boxes without area left out", "no_mask": "objects without a mask left out",
        "empty": "images without objects",
    }  # fmt: skip
    return ", ".join(f"{counts[key]} {phrase}" for key, phrase in words.items() if counts[key])


@contextlib.contextmanager
def quiet_pycocotools() -> Iterator[None]:
    """Hide pycocotools' progress output, and a warning of numpy 2 about its arrays."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
        yield


def decode_mask(segmentation: Any, height: int, width: int) -> NDArray[np.uint8]:
    """Polygons or run-length encoding as pixels (height, width) of 0 and 1."""
    coco = require("pycocotools.mask", extra="vision")
    if isinstance(segmentation, list):
        runs = coco.merge(coco.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        runs = coco.frPyObjects(segmentation, height, width)
    else:
        runs = segmentation
    with quiet_pycocotools():
        return coco.decode(runs)


def encode_mask(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Pixels (height, width) as compressed run-length encoding, ready for JSON."""
    runs = require("pycocotools.mask", extra="vision").encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": [int(side) for side in runs["size"]], "counts": runs["counts"].decode("ascii")}
