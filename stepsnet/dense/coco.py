"""pycocotools: masks as runs, and average precision by COCO's rules."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepsnet.optional import require

METRICS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
NAMES = {"bbox": "box", "segm": "mask"}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """pycocotools reports its progress by print, and its arrays lack an argument that numpy 2 asks for with a warning."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
        yield


def decode(segmentation: Any, height: int, width: int) -> NDArray[np.uint8]:
    """Polygons or runs as pixels (height, width) of 0 and 1."""
    coco = require("pycocotools.mask", extra="vision")
    if isinstance(segmentation, list):
        runs = coco.merge(coco.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        runs = coco.frPyObjects(segmentation, height, width)
    else:
        runs = segmentation
    with _quiet():
        return coco.decode(runs)


def encode(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Pixels (height, width) as compressed runs that JSON can hold."""
    runs = require("pycocotools.mask", extra="vision").encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": [int(side) for side in runs["size"]], "counts": runs["counts"].decode("ascii")}


def average_precision(truth: dict[str, Any], results: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """AP, AP50, AP75 and AP of small, medium and large objects, by "bbox" or "segm"; 0 where nothing was found, −1 where nothing exists.

    `truth` is a document in COCO's format, `results` a list in the format of its results.
    """
    names = [f"{NAMES[kind]}_{metric}" for metric in METRICS]
    if not results:
        return dict.fromkeys(names, 0.0)
    coco, evaluation = require("pycocotools.coco", extra="vision"), require("pycocotools.cocoeval", extra="vision")
    with _quiet():
        known = coco.COCO()
        known.dataset = truth
        known.createIndex()
        judge = evaluation.COCOeval(known, known.loadRes([dict(result) for result in results]), kind)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return {name: float(value) for name, value in zip(names, judge.stats, strict=False)}
