"""Folders of images and masks: layouts, crops, and errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.dense.masks import VOID, MaskedDataset, MaskedImages, MaskedSample, load_mask_folder
from stepsnet.errors import UsageError
from tests.dense_models import mask_folder


def load(root: Path, **options: object) -> MaskedImages:
    given = {"mask_values": [2, 1], "void_values": [3], "class_names": ["background", "tall"]} | options
    return load_mask_folder(DataConfig(kind="mask_folder", root=str(root), **given))  # type: ignore[arg-type]


def dataset(loaded: MaskedImages, augment: AugmentConfig | None, img_size: int = 32) -> MaskedDataset:
    return MaskedDataset(
        loaded.train, loaded.table, augment, img_size=img_size, max_size=4 * img_size, seed=0, strict=False
    )


def sample(data: MaskedDataset, index: int = 0, epoch: int = 0) -> MaskedSample:
    found = data[epoch, index]
    assert found is not None
    return found


def names(loaded: MaskedImages) -> tuple[list[str], list[str]]:
    train, valid = ([mask.stem for mask in split.masks] for split in (loaded.train, loaded.valid))
    return train, valid


def test_lists_split_the_images(tmp_path: Path) -> None:
    assert names(load(mask_folder(tmp_path))) == (["p0", "p1", "p2", "p3"], ["p4", "p5"])


def test_without_lists_a_part_is_for_validation(tmp_path: Path) -> None:
    mask_folder(tmp_path)
    (tmp_path / "train.txt").unlink()
    train, valid = names(load(tmp_path, valid_fraction=0.3))
    assert (len(train), len(valid), len({*train, *valid})) == (4, 2, 6)


@pytest.mark.parametrize("inner", [True, False])
def test_folders_split_the_images(tmp_path: Path, inner: bool) -> None:
    """train/images and train/masks, or ADE20K's images/training and annotations/training."""
    mask_folder(tmp_path / "all")
    for part, word, stems in (("train", "training", range(4)), ("val", "validation", range(4, 6))):
        for kind, ade in (("images", "images"), ("masks", "annotations")):
            folder = tmp_path / "new" / part / kind if inner else tmp_path / "new" / ade / word
            folder.mkdir(parents=True)
            for number in stems:
                shutil.copy(tmp_path / "all" / kind / f"p{number}.png", folder)
    assert names(load(tmp_path / "new")) == (["p0", "p1", "p2", "p3"], ["p4", "p5"])


def test_values_become_classes_and_void(tmp_path: Path) -> None:
    labels = sample(dataset(load(mask_folder(tmp_path)), None)).labels
    assert labels.shape == (40, 72)  # in validation, labels have the original size
    assert [int(labels[place]) for place in ((0, 0), (10, 10), (5, 7))] == [0, 1, VOID]


def test_classes_can_come_from_a_file(tmp_path: Path) -> None:
    mask_folder(tmp_path)
    (tmp_path / "classes.txt").write_text("nothing\ntall\nbackground\nedge\n")
    loaded = load(tmp_path, class_names=[], mask_values=[], void_values=[255])
    assert loaded.classes == ("nothing", "tall", "background", "edge")


def test_image_and_labels_get_the_same_crop(tmp_path: Path) -> None:
    data = dataset(load(mask_folder(tmp_path)), AugmentConfig(scale=(1.0, 2.0), flip=0.5))
    for epoch in range(6):
        found = sample(data, 1, epoch)
        assert found.image.shape[1:] == found.labels.shape
        bright = found.image.max(dim=0).values > 1.0
        agreed = (bright == (found.labels == 1))[found.labels != VOID].float().mean()
        assert agreed > 0.93


def test_a_crop_avoids_being_filled_by_one_class(tmp_path: Path) -> None:
    data = dataset(load(mask_folder(tmp_path)), AugmentConfig(scale=(2.0, 2.0)), img_size=40)
    largest = [torch.bincount(sample(data, 0, epoch).labels.flatten(), minlength=256)[:2] for epoch in range(8)]
    assert sum(float(counts.max() / counts.sum()) <= 0.75 for counts in largest) >= 6


def test_randomness_depends_only_on_seed_epoch_and_index(tmp_path: Path) -> None:
    data = dataset(load(mask_folder(tmp_path)), AugmentConfig(scale=(0.5, 2.0), flip=0.5, color_jitter=0.4))
    torch.testing.assert_close(sample(data, 1, 3).image, sample(data, 1, 3).image)


def put(path: str, mask: Image.Image) -> Callable[[Path], None]:
    return lambda root: mask.save(root / "masks" / path)


REFUSED = [
    (put("p1.png", Image.new("L", (9, 9))), r"mask .*p1.png is 9×9, but its image .*p1.png is 68×44"),
    (
        put("p1.png", Image.new("L", (68, 44), 7)),
        r"mask .*p1.png has the value 7, which is neither one of the 2 classes",
    ),
    (put("p1.png", Image.new("RGB", (68, 44))), r"mask .*p1.png has mode RGB"),
    (lambda root: (root / "masks/p1.png").write_bytes(b"none"), r"mask .*p1.png cannot be read"),
    (lambda root: (root / "masks/p1.png").unlink(), r"p1.png has no mask in"),
    (lambda root: (root / "images/p1.png").unlink(), r"has no image p1, which is in the list"),
    (lambda root: shutil.rmtree(root / "masks"), r"has no folder masks or .*data.masks=FOLDER"),
]


@pytest.mark.parametrize(("damage", "sentence"), REFUSED)
def test_damaged_data_are_refused_before_training(
    tmp_path: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    damage(mask_folder(tmp_path))
    with pytest.raises(UsageError, match=sentence):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"class_names": [], "mask_values": []}, r"the first masks have the values \[1, 2, 3\]"),
        ({"class_names": ["one"]}, "1 names for 2 classes"),
        ({"class_names": ["one", "one"]}, "one is among the class names twice"),
        ({"mask_values": [1, 1]}, "1 is among data.mask_values twice"),
        ({"mask_values": [1, 300]}, "must be between 0 and 255"),
        ({"void_values": [1]}, "1 is the value of a class and in data.void_values"),
        ({"mask_values": [], "void_values": [0]}, "0 is the value of a class and in data.void_values"),
    ],
)
def test_invalid_classes_are_refused(tmp_path: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load(mask_folder(tmp_path), **options)


def test_an_unreadable_image_is_skipped_and_counted(tmp_path: Path) -> None:
    data = dataset(load(mask_folder(tmp_path)), None)
    (tmp_path / "images/p0.png").write_bytes(b"none")
    assert (data[0, 0], data.skipped) == (None, 1)


def test_a_mask_that_changes_later_is_refused_when_it_is_read(tmp_path: Path) -> None:
    data = dataset(load(mask_folder(tmp_path)), None)
    Image.fromarray(np.full((40, 72), 9, dtype=np.uint8)).save(tmp_path / "masks/p0.png")
    with pytest.raises(UsageError, match=r"p0\.png has the value 9"):
        sample(data)
