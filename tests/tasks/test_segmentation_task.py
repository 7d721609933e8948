"""The segmentation task: crops in training, whole images in validation, IoU and accuracy of classes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.dense.masks import VOID, load_mask_folder
from stepsnet.dense.config import SegmentConfig
from stepsnet.tasks.base import DenseTask
from stepsnet.tasks.segmentation import Segmentation
from tests.dense_models import mask_folder


@pytest.fixture
def task(tmp_path: Path) -> Segmentation:
    values = DataConfig(
        kind="mask_folder", root=str(mask_folder(tmp_path)), img_size=32, max_size=64,
        mask_values=[2, 1], void_values=[3], class_names=["background", "tall"],
    )  # fmt: skip
    return Segmentation(load_mask_folder(values), values, AugmentConfig(scale=(0.5, 1.5)), SegmentConfig(), seed=0)


class Bright(nn.Module):
    """A segmenter that predicts class 1 for bright pixels."""

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        bright = (images.max(dim=1, keepdim=True).values > 1.0).float()
        return torch.cat((1 - bright, bright), dim=1) if labels is None else images.sum() * 0 + (labels != VOID).sum()


class Constant(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.cat((torch.ones_like(images[:, :1]), torch.zeros_like(images[:, :1])), dim=1)


def metrics(task: Segmentation, model: nn.Module, parts: list[list[int]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for part in parts:
        for name, value in task.evaluate(model, task.collate([task.valid[0, index] for index in part])).items():
            totals[name] = totals.get(name, 0.0) + float(value)
    return task.summary(totals)


def test_it_implements_the_dense_protocol(task: Segmentation) -> None:
    assert isinstance(task, DenseTask)
    pickle.loads(pickle.dumps(task))


def test_training_batches_all_have_the_size_of_a_crop(task: Segmentation) -> None:
    batch = task.collate([task.train[0, index] for index in range(4)])
    assert batch["image"].shape == (4, 3, 32, 32)
    assert batch["label"].shape == (4, 32, 32)
    for label, size in zip(batch["label"], batch["label_size"].tolist(), strict=True):
        assert bool((label[size[0] :] == VOID).all())  # below a small image


def test_validation_is_evaluated_at_the_original_size(task: Segmentation) -> None:
    batch = task.collate([task.valid[0, 0], task.valid[0, 1]])
    assert batch["label_size"].tolist() == [[56, 56], [60, 52]]
    assert [tuple(found.shape) for found in task.predicted_classes(Bright(), batch)] == [(56, 56), (60, 52)]


def test_a_perfect_segmenter_scores_one_and_void_does_not_count(task: Segmentation) -> None:
    found = metrics(task, Bright(), [[0, 1]])
    assert found["miou"] > 0.9
    assert set(found) == {"miou", "macc", "accuracy", "iou_background", "iou_tall"}


def test_totals_of_batches_add_up(task: Segmentation) -> None:
    assert metrics(task, Bright(), [[0], [1]]) == pytest.approx(metrics(task, Bright(), [[0, 1]]))


def test_predicting_one_of_two_classes_has_a_mean_accuracy_of_one_half(task: Segmentation) -> None:
    found = metrics(task, Constant(), [[0, 1]])
    tall, void = 2 * 24 * 20, 2 * (26 * 22 - 24 * 20)
    background = 56 * 56 + 60 * 52 - tall - void
    assert found["macc"] == pytest.approx(0.5)
    assert found["iou_background"] == pytest.approx(background / (background + tall))
    assert found["miou"] == pytest.approx(found["iou_background"] / 2)
    assert found["accuracy"] == pytest.approx(background / (background + tall))


def test_an_empty_batch_has_a_loss(task: Segmentation) -> None:
    assert task.loss(Bright(), task.collate([None])).item() == 0.0
