"""Detections in the pixels of the original picture, and in the format of COCO's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepsnet.dense.coco import encode
from stepsnet.optional.torchvision import import_torchvision

import_torchvision()

from torchvision.models.detection.roi_heads import expand_boxes, expand_masks, paste_mask_in_image  # noqa: E402

THRESHOLD = 0.5


@dataclass(frozen=True)
class Detection:
    """One object found: its box as x, y, width and height, its label (from 1), and its mask (height, width), if there is one."""

    box: tuple[float, float, float, float]
    label: int
    score: float
    mask: NDArray[np.bool_] | None


def in_the_picture(found: dict[str, Tensor], seen: Sequence[int], original: Sequence[int]) -> list[Detection]:
    """What a detector found in a picture that it saw at the size `seen`, at its `original` size (height, width); best first."""
    height, width = int(original[0]), int(original[1])
    down, across = height / float(seen[0]), width / float(seen[1])
    boxes = found["boxes"].float().cpu() * torch.tensor([across, down, across, down])
    boxes[:, 0::2].clamp_(0, width)
    boxes[:, 1::2].clamp_(0, height)
    masks: list[NDArray[np.bool_] | None] = [None] * len(boxes)
    if "masks" in found and len(boxes):
        small, factor = expand_masks(found["masks"].float().cpu(), padding=1)
        places = expand_boxes(boxes, factor).to(torch.int64)
        # One mask at a time: all hundred of a large picture at once would take half a gigabyte.
        masks = [
            paste_mask_in_image(mask[0], place, height, width).gt(THRESHOLD).numpy() for mask, place in zip(small, places, strict=True)
        ]
    corners = boxes.tolist()
    return [
        Detection((x1, y1, x2 - x1, y2 - y1), label, score, mask)
        for (x1, y1, x2, y2), label, score, mask in zip(corners, found["labels"].tolist(), found["scores"].tolist(), masks, strict=True)
    ]


def coco_results(image_id: int, detections: Sequence[Detection], category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """The detections of one picture as entries of a results file."""
    results = []
    for detection in detections:
        category = category_ids[detection.label - 1]
        box = [round(side, 2) for side in detection.box]
        result: dict[str, Any] = {"image_id": image_id, "category_id": category, "bbox": box, "score": round(detection.score, 5)}
        if detection.mask is not None:
            result["segmentation"] = encode(detection.mask)
        results.append(result)
    return results
