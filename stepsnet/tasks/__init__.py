"""Tasks: classification, language, detection, segmentation. Each turns a batch into a loss and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.dense.config import DetectConfig, SegmentConfig
from stepsnet.errors import UsageError, nearest

if TYPE_CHECKING:  # `stepsnet train --keys` needs the names of the tasks, not torch
    from stepsnet.tasks.base import Task

TASKS = ("classification", "language", "detection", "segmentation")


def make_task(
    name: str, data: DataConfig, augment: AugmentConfig, seed: int, smoothing: float, *,
    detect: DetectConfig | None = None, segment: SegmentConfig | None = None,
) -> Task:
    """Read and check the data, and build the task with it. Problems with the data are raised here."""
    if not 0 <= smoothing < 1:
        raise UsageError(f"smoothing is {smoothing}, but must be at least 0 and below 1.")
    if name == "classification":
        from stepsnet.data.images.readers import load_images
        from stepsnet.tasks.classification import Classification

        return Classification(load_images(data), data, augment, seed=seed, smoothing=smoothing)
    if name == "language":
        from stepsnet.data.text.corpora import load_text
        from stepsnet.tasks.language import Language

        return Language(load_text(data), data, seed=seed, smoothing=smoothing)
    if name == "detection":
        from stepsnet.data.dense.coco import load_coco
        from stepsnet.tasks.detection import Detection

        heads = detect or DetectConfig()
        return Detection(load_coco(data, masks=heads.masks), data, augment, heads, seed=seed)
    if name == "segmentation":
        from stepsnet.data.dense.masks import load_mask_folder
        from stepsnet.tasks.segmentation import Segmentation

        return Segmentation(load_mask_folder(data), data, augment, segment or SegmentConfig(), seed=seed)
    raise UsageError(f"there is no task {name!r}{nearest(name, TASKS)}; the tasks are {', '.join(TASKS)}.")
