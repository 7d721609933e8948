"""Detections at the original image's size, in the format of COCO's results, and their average precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepsnet.data.dense.coco import encode_mask, quiet_pycocotools
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision

SIZES = ("_small", "_medium", "_large")
METRICS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
NAMES = {"bbox": "box", "segm": "mask"}
THRESHOLD = 0.5


@dataclass(frozen=True)
class FoundObject:
    """One detected object: box as x, y, width and height, label (from 1), and mask (height, width), if any."""

    box: tuple[float, float, float, float]
    label: int
    score: float
    mask: NDArray[np.bool_] | None


def at_original_size(found: dict[str, Tensor], seen: Sequence[int], original: Sequence[int]) -> list[FoundObject]:
    """Detections of an image of size `seen`, scaled to its `original` size (height, width); best score first."""
    import_torchvision()
    from torchvision.models.detection.roi_heads import expand_boxes, expand_masks, paste_mask_in_image

    height, width = int(original[0]), int(original[1])
    down, across = height / float(seen[0]), width / float(seen[1])
    boxes = found["boxes"].float().cpu() * torch.tensor([across, down, across, down])
    boxes[:, 0::2].clamp_(0, width)
    boxes[:, 1::2].clamp_(0, height)
    masks: list[NDArray[np.bool_] | None] = [None] * len(boxes)
    if "masks" in found and len(boxes):
        small, factor = expand_masks(found["masks"].float().cpu(), padding=1)
        larger = expand_boxes(boxes, factor).to(torch.int64)
        # One mask at a time: all hundred of a large image at once would take half a gigabyte.
        masks = [
            paste_mask_in_image(mask[0], box, height, width).gt(THRESHOLD).numpy()
            for mask, box in zip(small, larger, strict=True)
        ]
    columns = (boxes.tolist(), found["labels"].tolist(), found["scores"].tolist(), masks)
    return [
        FoundObject((x1, y1, x2 - x1, y2 - y1), label, score, mask)
        for (x1, y1, x2, y2), label, score, mask in zip(*columns, strict=True)
    ]


def coco_results(image_id: int, objects: Sequence[FoundObject], category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """The objects of one image as entries of a results file."""
    results = []
    for found in objects:
        result: dict[str, Any] = {
            "image_id": image_id,
            "category_id": category_ids[found.label - 1],
            "bbox": [round(side, 2) for side in found.box],
            "score": round(found.score, 5),
        }
        if found.mask is not None:
            result["segmentation"] = encode_mask(found.mask)
        results.append(result)
    return results


def average_precision(truth: dict[str, Any], results: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """AP, AP50, AP75 and AP of small, medium and large objects, by "bbox" or "segm", computed by pycocotools.

    `truth` is a document in COCO's format, `results` a list in the format of its results. A metric is 0 where nothing
    was found. AP of a size is left out where no objects of that size exist, for which pycocotools has −1.
    """
    names = [f"{NAMES[kind]}_{metric}" for metric in METRICS]
    coco, cocoeval = require("pycocotools.coco", extra="vision"), require("pycocotools.cocoeval", extra="vision")
    with quiet_pycocotools():
        known, found = coco.COCO(), coco.COCO()
        known.dataset = truth
        known.createIndex()
        found.dataset = {**truth, "annotations": []}
        if results:  # loadRes needs one
            found = known.loadRes([dict(result) for result in results])
        evaluation = cocoeval.COCOeval(known, found, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    scores = dict(zip(names, map(float, evaluation.stats), strict=False))
    return {name: max(0.0, ap) for name, ap in scores.items() if ap >= 0 or not name.endswith(SIZES)}
