from __future__ import annotations

import pytest

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.errors import UsageError
from stepsnet.tasks import make_task


def test_digits_make_a_classification_task() -> None:
    task = make_task("classification", DataConfig(kind="digits", img_size=8), AugmentConfig(), seed=0, smoothing=0.1)
    assert len(task.train) == 1437
    assert task.collate([task.train[0, index] for index in range(5)])["image"].shape == (5, 1, 8, 8)


@pytest.mark.parametrize(
    ("name", "kind", "smoothing", "sentence"),
    [
        ("clasification", "digits", 0.0, "nearest: classification"),
        ("language", "digits", 0.0, "data.kind=digits is not text"),
        ("classification", "python_docs", 0.0, "data.kind=python_docs is not an image data set"),
        ("classification", "digits", 1.0, "smoothing is 1.0"),
    ],
)
def test_mismatched_task_and_data_are_refused(name: str, kind: str, smoothing: float, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make_task(name, DataConfig(kind=kind), AugmentConfig(), seed=0, smoothing=smoothing)
