from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.data.images.datasets import FileSource, ImageDataset, LabelledImages
from stepsnet.data.images.readers import load_image_folder, load_tiny_imagenet
from stepsnet.errors import UsageError

MakeImage = Callable[[Path], Path]


def folder(root: Path, **changes: object) -> LabelledImages:
    return load_image_folder(DataConfig(kind="image_folder", root=str(root), **changes))  # type: ignore[arg-type]


def names(source: object) -> list[str]:
    assert isinstance(source, FileSource)
    return [os.fsdecode(bytes(name)) for name in source.names]


@pytest.fixture
def split_folders(tmp_path: Path, make_image: MakeImage) -> Path:
    for name in ("train/cat/1.jpg", "train/cat/deep/2.PNG", "train/dog/1.png", "val/cat/9.png", "val/dog/8.png"):
        make_image(tmp_path / name)
    (tmp_path / "train/dog/notes.txt").write_text("not an image")
    return tmp_path


def test_classes_are_the_sorted_folders_and_images_are_found_at_any_depth(split_folders: Path) -> None:
    loaded = folder(split_folders)
    assert loaded.classes == ("cat", "dog")
    assert names(loaded.train) == ["cat/1.jpg", "cat/deep/2.PNG", "dog/1.png"]
    assert loaded.train.labels.tolist() == [0, 0, 1]
    assert names(loaded.valid) == ["cat/9.png", "dog/8.png"]


def test_validation_can_be_elsewhere_and_lack_a_class(
    split_folders: Path, tmp_path: Path, make_image: MakeImage
) -> None:
    make_image(tmp_path / "elsewhere/dog/1.png")
    loaded = folder(split_folders, valid=str(tmp_path / "elsewhere"))
    assert loaded.valid.labels.tolist() == [1]


def test_a_validation_folder_is_used_whole_even_if_it_is_trained_on(
    tmp_path: Path, make_image: MakeImage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        make_image(tmp_path / f"a/{number}.png")
    monkeypatch.chdir(tmp_path.parent)
    for spelling in (tmp_path, Path(tmp_path.name)):
        loaded = folder(tmp_path, valid=str(spelling))
        assert len(loaded.train.labels) == len(loaded.valid.labels) == 3
    assert caplog.text.count("is part of the training data") == 2


def test_without_a_split_a_part_of_each_class_is_for_validation(tmp_path: Path, make_image: MakeImage) -> None:
    for number in range(10):
        make_image(tmp_path / f"a/{number}.png")
        make_image(tmp_path / f"b/{number}.png")
    loaded = folder(tmp_path, valid_fraction=0.2)
    assert loaded.valid.labels.tolist() == [0, 0, 1, 1]
    assert not set(names(loaded.train)) & set(names(loaded.valid))
    assert len(loaded.train.labels) == 16


def test_the_error_names_an_empty_class(split_folders: Path) -> None:
    (split_folders / "train/emu").mkdir()
    with pytest.raises(UsageError, match="train/emu has no images"):
        folder(split_folders)


def test_the_error_names_a_class_only_in_validation(split_folders: Path, make_image: MakeImage) -> None:
    make_image(split_folders / "val/emu/1.png")
    with pytest.raises(UsageError, match="class 'emu'"):
        folder(split_folders)


def test_the_error_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        folder(tmp_path / "nowhere")


def test_the_error_names_a_folder_without_classes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no folders"):
        folder(tmp_path)


def test_the_error_names_the_expected_validation_folders(tmp_path: Path, make_image: MakeImage) -> None:
    make_image(tmp_path / "train/a/1.png")
    with pytest.raises(UsageError, match="none of val, valid"):
        folder(tmp_path)


def test_one_image_cannot_be_split(tmp_path: Path, make_image: MakeImage) -> None:
    make_image(tmp_path / "a/only.png")
    with pytest.raises(UsageError, match=r"only\.png has one image"):
        folder(tmp_path)


def broken(root: Path, make_image: MakeImage, *, strict: bool) -> ImageDataset:
    """Three files: an image, a truncated image, and no image."""
    make_image(root / "a/0.png")
    whole = make_image(root / "a/1.png").read_bytes()
    (root / "a/1.png").write_bytes(whole[: len(whole) // 2])
    (root / "a/2.jpg").write_bytes(b"this is not an image")
    source = FileSource(root, [("a/0.png", 0), ("a/1.png", 0), ("a/2.jpg", 0)])
    return ImageDataset(source, lambda image, seed: image, seed=0, strict=strict)


def test_unreadable_images_are_logged_once_counted_and_skipped(
    tmp_path: Path, make_image: MakeImage, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = broken(tmp_path, make_image, strict=False)
    with caplog.at_level(logging.WARNING, logger="stepsnet.data"):
        samples = [dataset[epoch, index] for epoch in (0, 1) for index in range(3)]
    assert [sample is None for sample in samples] == [False, True, True, False, True, True]
    assert dataset.skipped == 2
    assert [str(tmp_path / "a/1.png") in caplog.text, str(tmp_path / "a/2.jpg") in caplog.text] == [True, True]
    assert len(caplog.records) == 2


def test_with_strict_an_unreadable_image_raises_an_error_with_its_path(tmp_path: Path, make_image: MakeImage) -> None:
    dataset = broken(tmp_path, make_image, strict=True)
    with pytest.raises(UsageError, match=r"a/2\.jpg"):
        dataset[0, 2]


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_more_than_eight_bits_are_refused(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image").new(mode, (8, 8)).save(tmp_path / "deep.tiff")
    with pytest.raises(UsageError, match=r"deep\.tiff has more than 8 bits per channel"):
        FileSource(tmp_path, [("deep.tiff", 0)]).read(0)


def test_images_skipped_by_a_worker_are_counted_in_the_main_process(tmp_path: Path, make_image: MakeImage) -> None:
    dataset = broken(tmp_path, make_image, strict=False)
    worker = multiprocessing.get_context("fork").Process(target=dataset.__getitem__, args=((0, 1),))
    worker.start()
    worker.join()
    assert dataset.skipped == 1


@pytest.fixture
def tiny(tmp_path: Path, make_image: MakeImage) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    for name in (
        "train/n01/images/n01_0.JPEG",
        "train/n02/images/n02_0.JPEG",
        "val/images/val_0.JPEG",
        "val/images/val_1.JPEG",
    ):
        make_image(root / name)
    (root / "train/n01/n01_boxes.txt").write_text("n01_0.JPEG\t0\t0\t9\t9\n")
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    return tmp_path


def test_tiny_imagenet_reads_validation_classes_from_its_list(tiny: Path) -> None:
    loaded = load_tiny_imagenet(DataConfig(kind="tiny_imagenet", root=str(tiny)))
    assert loaded.classes == ("n01", "n02")
    assert loaded.train.labels.tolist() == [0, 1]
    assert loaded.valid.labels.tolist() == [1, 0]
    assert loaded.valid.read(0).size == (24, 20)


def test_tiny_imagenet_names_the_line_of_an_unknown_class(tiny: Path) -> None:
    (tiny / "tiny-imagenet-200/val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\nval_1.JPEG\tn99\t0\n")
    with pytest.raises(UsageError, match="line 2"):
        load_tiny_imagenet(DataConfig(kind="tiny_imagenet", root=str(tiny)))


def test_tiny_imagenet_names_the_missing_list(tiny: Path) -> None:
    (tiny / "tiny-imagenet-200/val/val_annotations.txt").unlink()
    with pytest.raises(UsageError, match=r"val_annotations\.txt is missing"):
        load_tiny_imagenet(DataConfig(kind="tiny_imagenet", root=str(tiny)))
