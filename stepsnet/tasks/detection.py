"""Object detection: boxes and masks.

Legend: B images, H, W height and width of the largest, M the largest number of objects in one image.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.dense.coco import Objects, ObjectSplit
from stepsnet.data.dense.objects import ObjectDataset, ObjectSample
from stepsnet.data.images.datasets import IMAGENET_MEAN, IMAGENET_STD
from stepsnet.dense.config import DetectConfig
from stepsnet.dense.maps import make_maps
from stepsnet.tasks.base import Batch, MapDataset


class Detection:
    """Trained with the losses of torchvision's detectors, evaluated by COCO's average precision over the whole
    validation set.

    A batch has "image" (B, 3, H, W), "size" (B, 2), "boxes" (B, M, 4), "labels" (B, M) padded with 0, "masks" (B, M, H,
    W) of bytes, and "ids".
    """

    name = "detection"
    unit = "images"
    higher_is_better = True

    def __init__(
        self, objects: Objects, data: DataConfig, augment: AugmentConfig, detect: DetectConfig, *, seed: int
    ) -> None:
        self.objects, self.detect, self.img_size, self.max_size = objects, detect, data.img_size, data.max_size
        self.headline = "mask_ap" if detect.masks else "box_ap"
        self.kinds = ("bbox", "segm") if detect.masks else ("bbox",)

        def dataset(split: ObjectSplit, changes: AugmentConfig | None) -> ObjectDataset:
            sizes = {"img_size": data.img_size, "max_size": data.max_size}
            return ObjectDataset(split, changes, **sizes, masks=detect.masks, seed=seed, strict=data.strict)

        self.train: MapDataset = dataset(objects.train, augment)
        self.valid: MapDataset = dataset(objects.valid, None)

    def model_kwargs(self) -> dict[str, Any]:
        return {}

    def network(self, backbone: nn.Module, *, frozen_norm: bool) -> nn.Module:
        from stepsnet.dense.detector import Detector

        return Detector(make_maps(backbone, frozen_norm=frozen_norm), self.detect, len(self.objects.classes))

    def network_macs(self, network: nn.Module) -> int:
        from stepsnet.dense.detector import Detector, detector_macs

        assert isinstance(network, Detector)
        limits = {"proposals": self.detect.proposals, "detections": self.detect.detections}
        return sum(detector_macs(network, self.img_size, min(self.img_size * 8 // 5, self.max_size), **limits).values())

    def facts(self) -> dict[str, Any]:
        return {"classes": list(self.objects.classes), "category_ids": list(self.objects.category_ids),
                "mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)}  # fmt: skip

    def collate(self, samples: list[ObjectSample | None]) -> Batch:
        kept = [sample for sample in samples if sample is not None]
        most = max((len(sample.labels) for sample in kept), default=0)
        sizes = [(sample.image.shape[1], sample.image.shape[2]) for sample in kept] or [(1, 1)]
        height, width = (max(sides) for sides in zip(*sizes, strict=True))
        canvas = (height, width) if self.detect.masks else (0, 0)
        batch = {
            "image": torch.zeros(len(kept), 3, height, width),
            "size": torch.tensor(sizes[: len(kept)], dtype=torch.int64).view(-1, 2),
            "boxes": torch.zeros(len(kept), most, 4),
            "labels": torch.zeros(len(kept), most, dtype=torch.int64),
            "masks": torch.zeros(len(kept), most, *canvas, dtype=torch.uint8),
            "ids": torch.tensor([sample.sample_id for sample in kept], dtype=torch.int64),
        }
        for row, sample in enumerate(kept):
            count, (rows, columns) = len(sample.labels), sizes[row]
            batch["image"][row, :, :rows, :columns] = sample.image
            batch["boxes"][row, :count], batch["labels"][row, :count] = sample.boxes, sample.labels
            if self.detect.masks:
                batch["masks"][row, :count, :rows, :columns] = sample.masks
        return batch

    def prepare(self, batch: Batch, step: int) -> Batch:  # noqa: ARG002  # nothing to augment
        return batch

    def units(self, batch: Batch) -> int:
        return len(batch["ids"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if len(batch["ids"]) == 0:  # all unreadable, but other processes wait for this one's part of the step
            blank, size = _blank(batch)
            return 0.0 * sum(model(blank, size, [_target(blank.new_zeros(0, 4), None, size[0].tolist())]).values())
        targets = []
        for boxes, labels, masks, size in zip(
            batch["boxes"], batch["labels"], batch["masks"], batch["size"].tolist(), strict=True
        ):
            real = labels > 0
            target = _target(boxes[real], masks[real, : size[0], : size[1]] if self.detect.masks else None, size)
            targets.append(target | {"labels": labels[real]})
        return sum(model(batch["image"], batch["size"], targets).values(), start=batch["image"].new_zeros(()))

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Run the model and count the images; the metrics come from `predictions` and `score`."""
        self._found(model, batch)
        return {"count": torch.tensor(float(len(batch["ids"])), dtype=torch.float64)}

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        return {"images": totals["count"]}

    def predictions(self, model: nn.Module, batch: Batch) -> list[Any]:
        """Entries of a COCO results file, and the id of each image that was read."""
        from stepsnet.dense.results import at_original_size, coco_results

        found: list[Any] = []
        detections = self._found(model, batch)
        for index, seen, each in zip(batch["ids"].tolist(), batch["size"].tolist(), detections, strict=True):
            image = self.objects.valid.images[index]
            objects = at_original_size(each, seen, (image.height, image.width))
            found += [image.image_id, *coco_results(image.image_id, objects, self.objects.category_ids)]
        return found

    def _found(self, model: nn.Module, batch: Batch) -> list[dict[str, Tensor]]:
        """One dict per image. The model also runs for an empty batch: processes of a sharded model wait for it."""
        images, sizes = (batch["image"], batch["size"]) if len(batch["ids"]) else _blank(batch)
        return model(images, sizes)[: len(batch["ids"])]

    def score(self, predictions: list[Any]) -> dict[str, float]:
        """Average precision over the readable images."""
        from stepsnet.dense.results import average_precision

        results = [found for found in predictions if isinstance(found, dict)]
        truth = self.truth({found for found in predictions if not isinstance(found, dict)})
        return {name: value for kind in self.kinds for name, value in average_precision(truth, results, kind).items()}

    def truth(self, image_ids: set[int]) -> dict[str, Any]:
        """The objects of these validation images, crowds included, as a document in COCO's format."""
        annotated = [each for each in self.objects.valid.images if each.image_id in image_ids]
        annotations = [
            {"image_id": image.image_id, "category_id": self.objects.category_ids[each.label - 1],
             "bbox": list(each.box), "area": each.area, "iscrowd": int(each.crowd), "segmentation": each.segmentation}
            for image in annotated
            for each in image.objects
        ]  # fmt: skip
        # Numbered from 1: pycocotools treats id 0 as no object.
        numbered = [{"id": number, **annotation} for number, annotation in enumerate(annotations, start=1)]
        images = [{"id": image.image_id, "height": image.height, "width": image.width} for image in annotated]
        named = zip(self.objects.category_ids, self.objects.classes, strict=True)
        return {
            "images": images,
            "annotations": numbered,
            "categories": [{"id": number, "name": name} for number, name in named],
        }

    def describe(self) -> dict[str, Any]:
        train, valid = self.objects.train, self.objects.valid
        facts = {"data": self.objects.name, "train_images": len(self.train), "valid_images": len(self.valid)}
        objects = {
            "train_objects": sum(len(image.objects) for image in train.images),
            "classes": len(self.objects.classes),
        }
        handled = {f"train_{key}": count for key, count in train.counts.items()} | {
            f"valid_{key}": n for key, n in valid.counts.items()
        }
        return {
            **facts,
            **objects,
            **{key: count for key, count in handled.items() if count},
            "input": [3, self.img_size, self.max_size],
        }


def _blank(batch: Batch) -> tuple[Tensor, Tensor]:
    """A black image and its size, on the batch's device."""
    return batch["image"].new_zeros(1, 3, 64, 64), torch.tensor([[64, 64]], device=batch["size"].device)


def _target(boxes: Tensor, masks: Tensor | None, size: Any) -> dict[str, Tensor]:
    """The target of one image in torchvision's format."""
    none = boxes.new_zeros(len(boxes), *size, dtype=torch.uint8) if masks is None else masks
    return {"boxes": boxes, "labels": torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device), "masks": none}
