"""The detection task: batches of unequal images, the loss, COCO's average precision."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.dense.coco import encode_mask, load_coco
from stepsnet.dense.config import DetectConfig
from stepsnet.tasks.base import DenseTask, WholeSetTask
from stepsnet.tasks.detection import Detection
from tests.dense_models import SIDE, coco_folder, document

METRICS = ("ap", "ap50", "ap75", "ap_small")  # the data has small objects only


def task_of(root: Path, augment: AugmentConfig | None = None, *, masks: bool = True) -> Detection:
    data, detect = DataConfig(kind="coco", root=str(root), img_size=SIDE, max_size=128), DetectConfig(masks=masks)
    return Detection(load_coco(data, masks=masks), data, augment or AugmentConfig(), detect, seed=0)


@pytest.fixture
def task(tmp_path: Path) -> Detection:
    return task_of(coco_folder(tmp_path))


class Listener(nn.Module):
    """A fake detector that records its input and returns given detections."""

    def __init__(self, found: dict[int, dict[str, Tensor]] | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.found, self.received = found or {}, {}  # type: ignore[var-annotated]

    def forward(self, images: Tensor, sizes: Tensor, targets: Any = None) -> Any:
        self.received = {"images": images, "sizes": sizes, "targets": targets}
        if targets is not None:
            return {"loss_a": self.weight * 1.0, "loss_b": self.weight * 2.0}
        return [self.found[index] for index in range(len(images))]


def test_it_implements_the_dense_and_whole_set_protocols(task: Detection) -> None:
    assert isinstance(task, DenseTask)
    assert isinstance(task, WholeSetTask)
    pickle.loads(pickle.dumps(task))  # loader workers hold it


def test_images_of_unequal_size_share_a_batch(tmp_path: Path) -> None:
    task = task_of(coco_folder(tmp_path), AugmentConfig(scale=(0.4, 1.0)))
    samples = [task.train[0, index] for index in range(5)]
    batch = task.collate(samples)
    assert len({tuple(size) for size in batch["size"].tolist()}) > 1
    model = Listener()
    assert task.loss(model, batch).item() == 3.0
    for sample, target, size in zip(samples, model.received["targets"], batch["size"].tolist(), strict=True):
        torch.testing.assert_close(target["boxes"], sample.boxes)
        torch.testing.assert_close(target["labels"], sample.labels)
        torch.testing.assert_close(target["masks"], sample.masks)
        assert list(target["masks"].shape[1:]) == size


def test_a_batch_can_be_split(task: Detection) -> None:
    batch = task.collate([task.train[0, index] for index in range(4)])
    half = {key: tensor.tensor_split(2)[1] for key, tensor in batch.items()}
    model = Listener()
    task.loss(model, half)
    assert [len(target["labels"]) for target in model.received["targets"]] == [2, 2]


def test_an_empty_batch_has_zero_loss(task: Detection) -> None:
    model = Listener()
    loss = task.loss(model, task.collate([None, None]))
    loss.backward()
    assert (loss.item(), model.weight.grad) == (0.0, torch.zeros(()))


def test_an_empty_batch_gives_no_detections_but_runs_the_model(task: Detection) -> None:
    model = Listener({0: perfect(task, 0)})
    assert task.predictions(model, task.collate([None])) == []
    assert len(model.received["images"]) == 1


def perfect(task: Detection, index: int) -> dict[str, Tensor]:
    """Perfect detections for a validation image. Masks fill their boxes, as in the data."""
    objects = task.objects.valid.images[index].objects
    boxes = torch.tensor([each.box for each in objects]).view(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    labels = torch.tensor([each.label for each in objects], dtype=torch.int64)
    return {
        "boxes": boxes,
        "labels": labels,
        "scores": torch.full((len(objects),), 0.9),
        "masks": torch.ones(len(objects), 1, 28, 28),
    }


def evaluated(task: Detection, found: dict[int, dict[str, Tensor]]) -> dict[str, float]:
    batch = task.collate([task.valid[0, index] for index in range(3)])
    return task.score(task.predictions(Listener(found), batch))


def test_perfect_detections_have_ap_one(task: Detection) -> None:
    metrics = evaluated(task, {index: perfect(task, index) for index in range(3)})
    assert (metrics["box_ap"], metrics["box_ap50"], metrics["mask_ap50"]) == pytest.approx((1.0, 1.0, 1.0), abs=1e-6)
    assert set(metrics) == {f"{kind}_{name}" for kind in ("box", "mask") for name in METRICS}


def test_wrong_classes_have_ap_zero(task: Detection) -> None:
    found = {index: perfect(task, index) for index in range(3)}
    for each in found.values():
        each["labels"] = 3 - each["labels"]
    assert evaluated(task, found)["box_ap"] == 0.0


def test_no_detections_have_ap_zero(task: Detection) -> None:
    nothing = {key: values[:0] for key, values in perfect(task, 0).items()}
    assert evaluated(task, dict.fromkeys(range(3), nothing))["box_ap"] == 0.0


def test_half_of_the_objects_give_ap50_of_one_half(task: Detection) -> None:
    found = {index: perfect(task, index) for index in range(3)}
    found[0] = {key: values[:0] for key, values in found[0].items()}
    assert evaluated(task, found)["box_ap50"] == pytest.approx(0.5, abs=0.01)  # COCO's 101 points of recall


def test_a_detection_in_a_crowd_is_ignored(tmp_path: Path) -> None:
    valid = document(3, first=6)
    crowd = [each for each in valid["annotations"] if each["category_id"] == 7]
    for each in crowd:
        mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
        x, y, w, h = each["bbox"]
        mask[y : y + h, x : x + w] = True
        each.update(iscrowd=1, segmentation=encode_mask(mask.numpy()))
    task = task_of(coco_folder(tmp_path, valid=valid))
    metrics = evaluated(task, {index: perfect(task, index) for index in range(3)})
    assert metrics["box_ap"] == pytest.approx(1.0)


def test_unread_images_do_not_count(task: Detection) -> None:
    batch = task.collate([task.valid[0, 0]])
    assert task.score(task.predictions(Listener({0: perfect(task, 0)}), batch))["box_ap"] == pytest.approx(1.0)


def test_without_masks_only_boxes_are_evaluated(tmp_path: Path) -> None:
    task = task_of(coco_folder(tmp_path), masks=False)
    assert task.headline == "box_ap"
    assert task.score([]) == {"box_ap": 0.0, "box_ap50": 0.0, "box_ap75": 0.0}  # no image, hence no size


def test_describe_counts_images_objects_and_corrections(task: Detection) -> None:
    facts = task.describe()
    assert (facts["train_images"], facts["valid_images"], facts["train_objects"], facts["classes"]) == (5, 3, 8, 2)
    assert facts["train_empty"] == 1
    assert task.facts()["category_ids"] == [3, 7]
