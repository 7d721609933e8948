"""A trained classifier, detector or segmenter for new images. It needs the run folder, not the training data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepsnet.data.config import AugmentConfig
from stepsnet.data.dense.coco import Objects, ObjectSplit, encode_mask
from stepsnet.data.dense.masks import MaskedImages, MaskSplit
from stepsnet.data.dense.objects import choose_view, to_input
from stepsnet.data.images.datasets import FileSource, FullTransform
from stepsnet.data.images.readers import black_border
from stepsnet.errors import UsageError
from stepsnet.files import read_json
from stepsnet.models import load_model, load_weights
from stepsnet.optional import require
from stepsnet.runs.folder import CLASSES, WEIGHTS, WEIGHTS_EMA
from stepsnet.tasks.base import DenseTask
from stepsnet.tasks.classification import Classification
from stepsnet.tasks.detection import Detection
from stepsnet.tasks.segmentation import Segmentation
from stepsnet.train.build import model_of, read_facts, task_of
from stepsnet.train.config import TrainConfig, read_config


@dataclass(frozen=True)
class Found:
    """One object: its box as x, y, width and height in pixels, and its mask (height, width) or None."""

    name: str
    number: int
    """The number of its class, from 0."""
    score: float
    box: tuple[float, float, float, float]
    mask: NDArray[np.bool_] | None

    def to_json(self) -> dict[str, Any]:
        box = [round(side, 2) for side in self.box]
        found: dict[str, Any] = {"class": self.name, "score": round(self.score, 4), "box": box}
        return found if self.mask is None else found | {"mask": encode_mask(self.mask)}


class Predictor:
    """`classify` names an image, `detect` finds objects, `segment` classifies pixels; `kind` is the task of the run."""

    def __init__(self, folder: Path, *, ema: bool = False) -> None:
        config = read_config(folder)
        if config.task == "language":
            raise UsageError(f"{folder} is a run of a language model; predict takes runs on images.")
        weights = folder / (WEIGHTS_EMA if ema else WEIGHTS)
        if not weights.is_file():
            why = "it was trained with optim.ema=0" if ema and not config.optim.ema else "it is not finished yet"
            raise UsageError(f"{folder} has no {weights.name}: {why}.")
        facts = read_class_facts(folder, config) if config.task == "classification" else read_facts(weights)
        self.kind, self.classes = config.task, tuple(facts["classes"])
        if config.task == "classification":
            mean, std = tuple(facts["mean"]), tuple(facts["std"])
            self.data = config.data
            self.transform = FullTransform(None, config.data.img_size, config.data.crop_pct, mean, std)
            self.model = load_model(weights).eval()
            return
        self.task = _task_without_data(config, facts)
        self.img_size, self.max_size = config.data.img_size, config.data.max_size
        self.model = model_of(config, self.task, pretrained=False)
        load_weights(self.model, weights)
        self.model.eval()

    @torch.no_grad()
    def classify(self, image: Any, count: int = 5) -> list[tuple[str, float]]:
        """The `count` most probable classes of an RGB Pillow image with their probabilities, best first."""
        if border := black_border(self.data, image.size):
            image = require("PIL.ImageOps", extra="vision").expand(image, border)
        grey = len(self.transform.mean) == 1
        logits = self.model(self.transform(image.convert("L") if grey else image, 0)[None]).float()[0]
        best = logits.softmax(0).topk(min(count, len(self.classes)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(self.classes[number], probability) for number, probability in pairs]

    @torch.no_grad()
    def detect(self, image: Any, score: float = 0.0) -> list[Found]:
        """The objects in an RGB Pillow image with at least this score, best first."""
        from stepsnet.dense.results import at_original_size

        view = choose_view(image.height, image.width, self.img_size, self.max_size, None, 0)
        (found,) = self.model(to_input(image, view)[None], torch.tensor([view.size]))
        chosen = {key: values[found["scores"] >= score] for key, values in found.items()}
        return [
            Found(self.classes[each.label - 1], each.label - 1, each.score, each.box, each.mask)
            for each in at_original_size(chosen, view.size, (image.height, image.width))
        ]

    @torch.no_grad()
    def segment(self, image: Any) -> NDArray[np.uint8]:
        """The class number of each pixel, (height, width)."""
        assert isinstance(self.task, Segmentation)
        view = choose_view(image.height, image.width, self.img_size, self.max_size, None, 0)
        size, original = torch.tensor([view.size]), torch.tensor([[image.height, image.width]])
        batch = {"image": to_input(image, view)[None], "size": size, "label_size": original}
        (labels,) = self.task.predicted_classes(self.model, batch)
        return labels.numpy().astype(np.uint8)


def read_class_facts(folder: Path, config: TrainConfig) -> dict[str, Any]:
    """Names of the classes, and mean and standard deviation of the images, of a run of classification."""
    if known := read_json(folder / CLASSES):
        return known
    task = task_of(config)  # a run of an older version: its data say it
    assert isinstance(task, Classification)
    return task.facts()


def _task_without_data(config: TrainConfig, facts: dict[str, Any]) -> DenseTask:
    """The task of the run without data: it builds the model and reads its outputs."""
    nothing, changes = FileSource(Path(), []), AugmentConfig()
    if config.task == "detection":
        split = ObjectSplit((), nothing, {})
        objects = Objects("", tuple(facts["classes"]), tuple(facts["category_ids"]), split, split)
        return Detection(objects, config.data, changes, config.detect, seed=config.seed)
    masks = MaskSplit(nothing, ())
    images = MaskedImages("", tuple(facts["classes"]), np.zeros(256, dtype=np.uint8), masks, masks)
    return Segmentation(images, config.data, changes, config.segment, seed=config.seed)
