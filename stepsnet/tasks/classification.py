"""Image classification.

Legend: B batch, C channels, H, W height and width, K classes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import AugmentConfig, DataConfig, mix, torch_seeded
from stepsnet.data.images.datasets import ImageDataset, ImageSample, ImageSource, LabelledImages, make_transform
from stepsnet.errors import UsageError
from stepsnet.files import read_json, write_json
from stepsnet.optional.torchvision import import_torchvision
from stepsnet.runs.folder import CLASSES
from stepsnet.tasks.base import Batch, MapDataset

SHOWN = 5  # classes that an error lists
_MIXING = 0x313  # separates the random draws of Mixup and CutMix from those of single samples


class Classification:
    """One label per image: cross entropy with label smoothing, or with the soft targets of Mixup and CutMix."""

    name = "classification"
    unit = "images"
    headline = "top1"
    higher_is_better = True

    def __init__(
        self, images: LabelledImages, data: DataConfig, augment: AugmentConfig, *, seed: int, smoothing: float
    ) -> None:
        self.data_name, self.classes, self.channels = images.name, images.classes, images.channels
        self.mean, self.std, self.img_size, self.smoothing = images.mean, images.std, data.img_size, smoothing
        self.mixer = BatchMixer(augment, len(self.classes), smoothing, seed)

        def dataset(source: ImageSource, changes: AugmentConfig | None) -> ImageDataset:
            transform = make_transform(source, changes, data, self.mean, self.std)
            return ImageDataset(source, transform, seed=seed, strict=data.strict)

        self.train: MapDataset = dataset(images.train, augment)
        self.valid: MapDataset = dataset(images.valid, None)

    def model_kwargs(self) -> dict[str, Any]:
        return {"num_classes": len(self.classes), "in_chans": self.channels, "img_size": self.img_size}

    def facts(self) -> dict[str, Any]:
        """What predictions need to know about the data."""
        return {"classes": list(self.classes), "mean": list(self.mean), "std": list(self.std)}

    def check_run(self, folder: Path) -> None:
        known = read_json(folder / CLASSES).get("classes", list(self.classes))
        if known != list(self.classes):
            own, found = (", ".join(names[:SHOWN]) + " …" * (len(names) > SHOWN) for names in (known, self.classes))
            raise UsageError(f"{folder} was trained on other classes ({own}) than the data have ({found}).")

    def write_files(self, folder: Path) -> None:
        """Write classes.json for `stepsnet predict`."""
        if not (folder / CLASSES).is_file():
            write_json(folder / CLASSES, self.facts())

    def collate(self, samples: list[ImageSample | None]) -> Batch:
        kept = [sample for sample in samples if sample is not None]
        return {
            "image": self._stack([sample.image for sample in kept]),
            "target": torch.tensor([sample.label for sample in kept], dtype=torch.int64),
            "ids": torch.tensor([sample.sample_id for sample in kept], dtype=torch.int64),
        }

    def _stack(self, images: list[Any]) -> Tensor:
        """Stack a batch. Arrays (H, W, C) are normalised here; tensors (C, H, W) already are."""
        if not images:
            return torch.empty(0, self.channels, self.img_size, self.img_size)
        if isinstance(images[0], Tensor):
            return torch.stack(images)
        pixels = (
            torch.from_numpy(np.stack(images))
            .permute(0, 3, 1, 2)
            .to(torch.float32, memory_format=torch.contiguous_format)
        )
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return pixels.sub_(255 * mean).div_(255 * std)

    def prepare(self, batch: Batch, step: int) -> Batch:
        image, target = self.mixer(batch["image"], batch["target"], batch["ids"], step)
        return {**batch, "image": image, "target": target}

    def units(self, batch: Batch) -> int:
        return len(batch["ids"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, target = _logits(model, batch["image"]), batch["target"]
        if len(logits) == 0:
            return logits.sum()  # zero, with a zero gradient
        # Soft targets already contain the smoothing.
        return F.cross_entropy(logits, target, label_smoothing=0.0 if target.ndim == 2 else self.smoothing)

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = _logits(model, batch["image"])
        target = batch["target"]
        hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == target[:, None]
        return {
            "loss_sum": F.cross_entropy(logits, target, reduction="sum").double(),
            "top1_sum": hits[:, 0].sum().double(),
            "top5_sum": hits.sum().double(),
            "count": torch.tensor(float(len(target)), dtype=torch.float64, device=logits.device),
        }

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        count = max(totals["count"], 1.0)
        return {key: totals[f"{key}_sum"] / count for key in ("loss", "top1", "top5")}

    def describe(self) -> dict[str, Any]:
        facts = {
            "data": self.data_name,
            "train_images": len(self.train),
            "valid_images": len(self.valid),
            "classes": len(self.classes),
        }
        return {
            **facts,
            "input": [self.channels, self.img_size, self.img_size],
            "mean": list(self.mean),
            "std": list(self.std),
        }


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    """(B, K). The model also runs for an empty batch, because other ranks wait for its part of the step."""
    if len(images):
        return model(images).float()
    return model(images.new_zeros(2, *images.shape[1:])).float()[:0]


@dataclass(frozen=True)
class BatchMixer:
    """Mixup or CutMix of a batch, with randomness from (seed, step, first id). Targets become soft, (B, K)."""

    augment: AugmentConfig
    num_classes: int
    smoothing: float
    seed: int

    def __call__(self, images: Tensor, target: Tensor, ids: Tensor, step: int) -> tuple[Tensor, Tensor]:
        augment = self.augment
        if not (augment.mixup or augment.cutmix) or len(images) == 0:
            return images, target
        with torch_seeded(mix(self.seed, _MIXING, step, int(ids[0]))):
            if float(torch.rand(())) >= augment.mix_prob:
                return images, target
            both = bool(augment.mixup and augment.cutmix)
            cut = float(torch.rand(())) < augment.mix_switch if both else bool(augment.cutmix)
            # torchvision's CutMix computes lambda from the box after clipping it to the image.
            name, alpha = ("CutMix", augment.cutmix) if cut else ("MixUp", augment.mixup)
            images, soft = _mixer(name, alpha, self.num_classes)(images, target)
        return images, soft * (1 - self.smoothing) + self.smoothing / self.num_classes


@functools.lru_cache(maxsize=8)
def _mixer(name: str, alpha: float, num_classes: int) -> Any:
    import_torchvision()
    from torchvision.transforms import v2

    return getattr(v2, name)(alpha=alpha, num_classes=num_classes)
