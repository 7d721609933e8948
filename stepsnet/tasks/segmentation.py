"""Semantic segmentation: a class for every pixel.

Legend: B images, H, W height and width, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.dense.masks import VOID, MaskedDataset, MaskedImages, MaskedSample, MaskSplit
from stepsnet.data.images.datasets import IMAGENET_MEAN, IMAGENET_STD
from stepsnet.dense.config import SegmentConfig
from stepsnet.dense.maps import make_maps
from stepsnet.tasks.base import Batch, MapDataset


class Segmentation:
    """UPerNet, trained with cross entropy, evaluated by mean IoU and mean accuracy over classes at the original
    resolution.

    A batch has "image" (B, 3, H, W) and "size" (B, 2), "label" of bytes (B, h, w) and "label_size" (B, 2), and "ids".
    In training all sizes are `data.img_size`; in validation labels have the original image's size, padded with void.
    """

    name = "segmentation"
    unit = "images"
    headline = "miou"
    higher_is_better = True

    def __init__(
        self, images: MaskedImages, data: DataConfig, augment: AugmentConfig, segment: SegmentConfig, *, seed: int
    ) -> None:
        self.images, self.segment, self.img_size, self.max_size = images, segment, data.img_size, data.max_size

        def dataset(split: MaskSplit, changes: AugmentConfig | None) -> MaskedDataset:
            sizes = {"img_size": data.img_size, "max_size": data.max_size}
            return MaskedDataset(split, images.table, changes, **sizes, seed=seed, strict=data.strict)

        self.train: MapDataset = dataset(images.train, augment)
        self.valid: MapDataset = dataset(images.valid, None)

    def model_kwargs(self) -> dict[str, Any]:
        return {}

    def network(self, backbone: nn.Module, *, frozen_norm: bool) -> nn.Module:
        from stepsnet.dense.upernet import Segmenter

        return Segmenter(make_maps(backbone, frozen_norm=frozen_norm), self.segment, len(self.images.classes))

    def network_macs(self, network: nn.Module) -> int:
        from stepsnet.dense.upernet import Segmenter

        assert isinstance(network, Segmenter)
        return sum(network.macs(self.img_size, self.img_size).values())

    def facts(self) -> dict[str, Any]:
        return {"classes": list(self.images.classes), "mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)}

    def collate(self, samples: list[MaskedSample | None]) -> Batch:
        kept = [sample for sample in samples if sample is not None]
        cropped = all(
            max(sample.image.shape[1:]) <= self.img_size and sample.image.shape[1:] == sample.labels.shape
            for sample in kept
        )
        floor = (
            self.img_size if cropped else 1
        )  # crops of small images are padded, so that all training batches have one size
        images, sizes = _stacked([sample.image for sample in kept], torch.zeros(3, floor, floor))
        labels, label_sizes = _stacked(
            [sample.labels for sample in kept], torch.full((floor, floor), VOID, dtype=torch.uint8)
        )
        ids = torch.tensor([sample.sample_id for sample in kept], dtype=torch.int64)
        return {"image": images, "size": sizes, "label": labels, "label_size": label_sizes, "ids": ids}

    def prepare(self, batch: Batch, step: int) -> Batch:  # noqa: ARG002  # nothing to augment
        return batch

    def units(self, batch: Batch) -> int:
        return len(batch["ids"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch["image"], batch["label"].long()
        if len(images) == 0:  # all unreadable, but other processes wait for this one's part of the step
            side = (1, self.img_size, self.img_size)
            images, labels = images.new_zeros(1, 3, *side[1:]), labels.new_full(side, VOID)
        return model(images, labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        classes = len(self.images.classes)
        confusion = torch.zeros(classes, classes, dtype=torch.float64, device=batch["image"].device)
        for predicted, canvas in zip(self.predicted_classes(model, batch), batch["label"], strict=True):
            label = canvas[: predicted.shape[0], : predicted.shape[1]].long()
            counted = label != VOID
            pairs = label[counted] * classes + predicted[counted]
            confusion += torch.bincount(pairs, minlength=classes**2).view(classes, classes)
        sums = {"hit": confusion.diagonal(), "true": confusion.sum(dim=1), "said": confusion.sum(dim=0)}
        return {
            f"{name}_{index}": value for name, values in sums.items() for index, value in enumerate(values.unbind())
        }

    def predicted_classes(self, model: nn.Module, batch: Batch) -> list[Tensor]:
        """The most probable class of each pixel of each image, at the size of its label."""
        sizes, alike = batch["size"].tolist(), len(set(map(tuple, batch["size"].tolist()))) == 1
        if alike:
            height, width = sizes[0]
            found = list(model(batch["image"][:, :, :height, :width]).split(1))
        else:
            found = [
                model(image[None, :, :height, :width])
                for image, (height, width) in zip(batch["image"], sizes, strict=True)
            ]
        return [
            F.interpolate(each.float(), size=(height, width), mode="bilinear", align_corners=False)[0].argmax(dim=0)
            for each, (height, width) in zip(found, batch["label_size"].tolist(), strict=True)
        ]

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        """`miou` and `macc` are means over classes that occur (for IoU: or are predicted); `accuracy` is over
        pixels."""
        classes = range(len(self.images.classes))
        hit, true, said = ([totals[f"{name}_{index}"] for index in classes] for name in ("hit", "true", "said"))
        ious = {
            index: hit[index] / (true[index] + said[index] - hit[index])
            for index in classes
            if true[index] + said[index] > 0
        }
        accuracies = [hit[index] / true[index] for index in classes if true[index] > 0]
        overall = {
            "miou": sum(ious.values()) / max(len(ious), 1),
            "macc": sum(accuracies) / max(len(accuracies), 1),
            "accuracy": sum(hit) / max(sum(true), 1.0),
        }
        few = {f"iou_{self.images.classes[index]}": value for index, value in ious.items()} if len(classes) <= 8 else {}
        return overall | few

    def describe(self) -> dict[str, Any]:
        facts = {"data": self.images.name, "train_images": len(self.train), "valid_images": len(self.valid)}
        return {**facts, "classes": len(self.images.classes), "input": [3, self.img_size, self.img_size]}


def _stacked(tensors: list[Tensor], filling: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors (…, H, W) padded to one size, at least that of `filling`, and their sizes."""
    sizes = [(tensor.shape[-2], tensor.shape[-1]) for tensor in tensors]
    height, width = (max(sides) for sides in zip(*sizes, filling.shape[-2:], strict=True))
    fill = filling.flatten()[0].item()
    canvas = filling.new_full((len(tensors), *filling.shape[:-2], height, width), fill)
    for row, tensor, (rows, columns) in zip(canvas, tensors, sizes, strict=True):
        row[..., :rows, :columns] = tensor
    return canvas, torch.tensor(sizes, dtype=torch.int64).view(-1, 2)
