from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.images.datasets import ArraySource, LabelledImages
from stepsnet.tasks.base import Task
from stepsnet.tasks.classification import Classification

CLASSES = ("a", "b", "c", "d", "e", "f", "g")


def make(augment: AugmentConfig | None = None, smoothing: float = 0.0, seed: int = 0) -> Classification:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (28, 8, 8, 3), dtype=np.uint8), np.arange(28) % 7
    toy = LabelledImages(
        "toy",
        CLASSES,
        (0.5, 0.4, 0.3),
        (0.2, 0.3, 0.4),
        ArraySource(images, labels),
        ArraySource(images[:9], labels[:9]),
    )
    data = DataConfig(kind="cifar10", img_size=8, crop_pct=1.0)
    return Classification(toy, data, augment or AugmentConfig(), seed=seed, smoothing=smoothing)


class Fixed(nn.Module):
    """Returns fixed logits and records its input."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, image: Tensor) -> Tensor:
        return self.logits[: len(image)]


def test_it_implements_the_task_protocol() -> None:
    task: Task = make()
    assert (task.name, task.unit, task.headline, task.higher_is_better) == ("classification", "images", "top1", True)
    assert task.model_kwargs() == {"num_classes": 7, "in_chans": 3, "img_size": 8}
    assert task.describe()["train_images"] == 28
    assert task.describe()["valid_images"] == 9


def test_a_batch_is_normalised_and_has_sample_ids() -> None:
    task = make()
    batch = task.collate([task.train[0, 5], None, task.train[0, 3]])
    source = np.stack(
        [np.random.default_rng(0).integers(0, 256, (28, 8, 8, 3), dtype=np.uint8)[index] for index in (5, 3)]
    )
    expected = (
        torch.from_numpy(source).permute(0, 3, 1, 2) / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
    ) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    assert torch.allclose(batch["image"], expected, atol=1e-5)
    assert batch["image"].is_contiguous()
    assert batch["ids"].tolist() == [5, 3]
    assert batch["target"].tolist() == [5, 3]
    assert task.units(batch) == 2


@pytest.mark.parametrize(
    "augment", [AugmentConfig(crop="pad", flip=0.5), AugmentConfig(crop="resized", randaugment=9, erasing=0.5)]
)
def test_a_sample_depends_only_on_seed_epoch_and_index(augment: AugmentConfig) -> None:
    def sample(seed: int, epoch: int, index: int) -> Tensor:
        task = make(augment, seed=seed)
        return task.collate([task.train[epoch, index]])["image"]

    base = sample(0, 0, 4)
    torch.rand(3)
    assert torch.equal(sample(0, 0, 4), base)
    assert any(not torch.equal(sample(0, epoch, 4), base) for epoch in range(1, 4))
    assert any(not torch.equal(sample(seed, 0, 4), base) for seed in range(1, 4))


def test_validation_is_the_same_in_every_epoch() -> None:
    task = make(AugmentConfig(crop="pad", flip=0.5))
    assert torch.equal(task.collate([task.valid[0, 1]])["image"], task.collate([task.valid[9, 1]])["image"])


def test_the_loss_smooths_hard_targets() -> None:
    logits, target = torch.randn(4, 7), torch.tensor([0, 1, 2, 6])
    batch = {"image": torch.zeros(4, 3, 8, 8), "target": target, "ids": target}
    loss = make(smoothing=0.1).loss(Fixed(logits), batch)
    soft = F.one_hot(target, 7) * 0.9 + 0.1 / 7
    assert torch.allclose(loss, -(soft * logits.log_softmax(1)).sum(1).mean())


@pytest.mark.parametrize("augment", [AugmentConfig(mixup=0.8), AugmentConfig(cutmix=1.0)])
def test_the_loss_does_not_smooth_mixed_targets(augment: AugmentConfig) -> None:
    task, logits = make(augment, smoothing=0.1), torch.randn(4, 7)
    batch = task.prepare(task.collate([task.train[0, index] for index in range(4)]), step=1)
    assert torch.allclose(task.loss(Fixed(logits), batch), -(batch["target"] * logits.log_softmax(1)).sum(1).mean())
    assert batch["ids"].tolist() == [0, 1, 2, 3]


def test_totals_of_batches_add_up_to_the_metrics_of_the_set() -> None:
    task, logits = make(), torch.zeros(3, 7)
    logits[0, 0] = 5.0  # right
    logits[1, 3], logits[1, 2] = 5.0, 4.0  # the right class second
    logits[2, :6] = 5.0  # the right class last of seven
    target = torch.tensor([0, 2, 6])
    totals: dict[str, float] = {}
    for part in (slice(0, 1), slice(1, 3)):
        batch = {"image": torch.zeros(len(target[part]), 3, 8, 8), "target": target[part], "ids": target[part]}
        for key, value in task.evaluate(Fixed(logits[part]), batch).items():
            assert value.dtype == torch.float64
            totals[key] = totals.get(key, 0.0) + value.item()
    metrics = task.summary(totals)
    assert totals["count"] == 3
    assert metrics["top1"] == pytest.approx(1 / 3)
    assert metrics["top5"] == pytest.approx(2 / 3)
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, target).item())


def test_top5_of_two_classes_is_one() -> None:
    task = make()
    batch = {"image": torch.zeros(2, 3, 8, 8), "target": torch.tensor([0, 1]), "ids": torch.tensor([0, 1])}
    assert task.evaluate(Fixed(torch.randn(2, 2)), batch)["top5_sum"].item() == 2


def test_an_empty_batch_has_a_zero_gradient() -> None:
    task = make(AugmentConfig(mixup=0.8))
    batch = task.prepare(task.collate([None, None]), step=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 7))
    loss = task.loss(model, batch)
    loss.backward()
    assert loss.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
    assert task.evaluate(model, batch)["count"].item() == 0


def test_a_task_can_be_pickled_for_loader_workers() -> None:
    task = make(AugmentConfig(crop="resized", erasing=0.5, cutmix=1.0))
    image = task.collate([task.train[0, 1]])["image"]
    copy = pickle.loads(pickle.dumps(task))
    assert torch.equal(copy.collate([copy.train[0, 1]])["image"], image)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        AugmentConfig().flip = 0.5  # type: ignore[misc]
