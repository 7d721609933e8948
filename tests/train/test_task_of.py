from __future__ import annotations

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.errors import UsageError
from stepsnet.train.build import task_of
from stepsnet.train.config import TrainConfig


def config(task: str, data: DataConfig) -> TrainConfig:
    return TrainConfig(task=task, model="test_deit", iters=1, batch_size=4, lr=1e-3, data=data)  # type: ignore[arg-type]


def test_digits_make_a_classification_task() -> None:
    task = task_of(config("classification", DataConfig(kind="digits", img_size=8)))
    assert len(task.train) == 1437
    assert task.collate([task.train[0, index] for index in range(5)])["image"].shape == (5, 1, 8, 8)


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("clasification", "digits", "nearest: classification"),
        ("language", "digits", "data.kind=digits is not text"),
        ("classification", "python_docs", "data.kind=python_docs is not an image data set"),
        ("detection", "digits", "data.kind=digits has no annotated objects"),
        ("segmentation", "digits", "data.kind=digits has no segmentation masks"),
    ],
)
def test_mismatched_task_and_data_are_refused(name: str, kind: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        task_of(config(name, DataConfig(kind=kind)))
