"""Small data sets for the tests of detection and segmentation: bright rectangles and discs on noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 64
NARROW = [
    "detect.channels=8", "detect.hidden=16", "detect.rois=16", "detect.rpn_samples=32",
    "detect.candidates=60", "detect.proposals=30", "detect.mask_convs=1", "detect.anchor_scale=4",
]  # fmt: skip
"""Settings of a small detector."""


def noisy_image(
    seed: int, boxes: list[tuple[int, int, int, int]], height: int = SIDE, width: int = SIDE
) -> Image.Image:
    """Noise with a bright rectangle at each box (x, y, width, height)."""
    pixels = np.random.default_rng(seed).integers(0, 60, (height, width, 3), dtype=np.uint8)
    for number, (x, y, w, h) in enumerate(boxes):
        pixels[y : y + h, x : x + w, number % 3] = 220
    return Image.fromarray(pixels)


def polygon(box: tuple[int, int, int, int]) -> list[list[float]]:
    x, y, w, h = map(float, box)
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def runs(box: tuple[int, int, int, int], height: int = SIDE, width: int = SIDE) -> dict[str, Any]:
    """The box as uncompressed runs, column by column."""
    mask = np.zeros((height, width), dtype=np.uint8)
    mask[box[1] : box[1] + box[3], box[0] : box[0] + box[2]] = 1
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate(([0], edges, [len(flat)]))).tolist()
    return {"size": [height, width], "counts": counts if flat[0] == 0 else [0, *counts]}


def document(count: int, first: int = 1) -> dict[str, Any]:
    """A COCO document: categories 3 and 7; each image has a polygon of one and runs of the other; the last image is
    empty."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        image_id = first + number
        images.append({"id": image_id, "file_name": f"{image_id}.png", "height": SIDE, "width": SIDE})
        for category, box in boxes_of(image_id).items() if number < count - 1 else ():
            shape = polygon(box) if category == 3 else runs(box)
            area = box[2] * box[3]
            annotations.append({"id": len(annotations) + 1, "image_id": image_id, "category_id": category,
                                "bbox": list(box), "area": area, "iscrowd": 0, "segmentation": shape})  # fmt: skip
    categories = [{"id": 7, "name": "wide"}, {"id": 3, "name": "tall"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def boxes_of(image_id: int) -> dict[int, tuple[int, int, int, int]]:
    shift = 5 * image_id % 20
    return {3: (4 + shift, 6, 12, 20), 7: (10, 34 + shift // 2, 24, 14)}


def coco_folder(root: Path, train: dict[str, Any] | None = None, valid: dict[str, Any] | None = None) -> Path:
    """A data set of 5 and 3 images in COCO's format; `train` and `valid` replace its documents."""
    (root / "images").mkdir(parents=True)
    documents = {
        "train": document(5) if train is None else train,
        "val": document(3, first=6) if valid is None else valid,
    }
    for image_id in range(1, 9):
        noisy_image(image_id, list(boxes_of(image_id).values())).save(root / "images" / f"{image_id}.png")
    for part, content in documents.items():
        (root / f"annotations_{part}.json").write_text(json.dumps(content))
    return root


def mask_folder(root: Path, count: int = 6) -> Path:
    """Images of unequal size with masks of the values 1 (tall), 2 (background) and 3 (void)."""
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    names = []
    for number in range(count):
        height, width = 40 + 4 * number, 72 - 4 * number
        noisy_image(number, [(8, 6, 20, 24)], height, width).save(root / "images" / f"p{number}.png")
        mask = np.full((height, width), 2, dtype=np.uint8)
        mask[5:31, 7:29] = 3
        mask[6:30, 8:28] = 1
        Image.fromarray(mask).save(root / "masks" / f"p{number}.png")
        names.append(f"p{number}")
    (root / "train.txt").write_text("\n".join(names[:4]))
    (root / "val.txt").write_text("\n".join(names[4:]))
    return root


MASK_WORDS = [
    "segment.channels=8", "segment.auxiliary_channels=8",
    "data.mask_values=2,1",
    "data.void_values=3",
    "data.class_names=background,tall",
    "data.img_size=32",
    "data.max_size=64",
]
