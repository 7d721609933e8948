"""The same global batches for any number of processes and workers, every validation sample once."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.images.readers import load_images
from stepsnet.errors import UsageError
from stepsnet.tasks.classification import Classification
from stepsnet.train.distributed import Processes
from stepsnet.train.loader import BatchKeys, TrainingBatches, ValidationBatches
from tests.train.synthetic import NoisyImages, NoisyTask

ALONE = Processes()


def two(rank: int) -> Processes:
    return Processes(rank=rank, world=2, parallel="ddp")


def test_processes_share_each_global_batch() -> None:
    whole = list(islice(BatchKeys(23, 6, 5, ALONE), 10))
    halves = [list(islice(BatchKeys(23, 6, 5, two(rank)), 10)) for rank in (0, 1)]
    assert [left + right for left, right in zip(*halves, strict=True)] == whole


def test_epochs_have_no_duplicates_and_different_orders() -> None:
    batches = list(islice(BatchKeys(23, 6, 5, ALONE), 6))
    epochs = [[key for batch in part for key in batch] for part in (batches[:3], batches[3:])]
    assert [{epoch for epoch, _ in keys} for keys in epochs] == [{0}, {1}]
    assert [len({index for _, index in keys}) for keys in epochs] == [18, 18]
    assert [index for _, index in epochs[0]] != [index for _, index in epochs[1]]


def test_any_batch_can_be_the_first() -> None:
    keys = BatchKeys(23, 6, 5, ALONE)
    keys.start = 7
    assert list(islice(keys, 3)) == list(islice(BatchKeys(23, 6, 5, ALONE), 10))[7:]


def test_impossible_batch_sizes_are_errors() -> None:
    with pytest.raises(UsageError, match="above 5, the number of training samples"):
        BatchKeys(5, 6, 0, ALONE)
    with pytest.raises(UsageError, match="is not divisible by the number of processes, 2"):
        BatchKeys(20, 5, 0, two(0))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_starts_at_any_batch(workers: int) -> None:
    keys = BatchKeys(40, 8, 1, ALONE)
    expected = [[index for _, index in batch] for batch in islice(keys, 9)]
    keys.start = 6
    batches = TrainingBatches(NoisyTask(samples=40), keys, workers)
    batches.start()
    assert [next(batches)["ids"].tolist() for _ in range(3)] == expected[6:]
    batches.close()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("total", [1, 12, 13, 17])
def test_validation_has_every_sample_once_and_equal_numbers_of_batches(world: int, total: int) -> None:
    found, lengths = [], set()
    for rank in range(world):
        batches = list(ValidationBatches(NoisyTask(valid=total), 6, 0, Processes(rank=rank, world=world)))
        lengths.add(len(batches))
        found += [index for batch, counts in batches if counts for index in batch["ids"].tolist()]
    assert sorted(found) == list(range(total))
    assert len(lengths) == 1


def test_strict_reports_an_unreadable_image_of_a_worker_in_one_sentence(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(8):
        folder = tmp_path / "train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"not an image")
    data = DataConfig(kind="image_folder", root=str(tmp_path / "train"), img_size=8, strict=True, valid_fraction=0.25)
    task = Classification(load_images(data), data, AugmentConfig(), seed=0, smoothing=0.0)
    batches = TrainingBatches(task, BatchKeys(len(task.train), len(task.train), 0, ALONE), workers=1)
    with pytest.raises(UsageError, match=r"0\.png") as caught:
        batches.start()
    batches.close()
    assert "\n" not in str(caught.value)


class Damaged(NoisyImages):
    def __getitem__(self, key: tuple[int, int]) -> Any:
        raise UsageError("the mask m.png is damaged")


def test_an_error_of_a_worker_in_validation_is_one_sentence() -> None:
    task = NoisyTask()
    task.valid = Damaged(4, frozenset(), frozenset())
    with pytest.raises(UsageError, match=r"^the mask m\.png is damaged$"):
        list(ValidationBatches(task, 2, 1, ALONE))
