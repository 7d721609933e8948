"""Annotations in COCO's format: reading, counted corrections, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.data.dense.coco import Objects, decode_mask, encode_mask, load_coco
from stepsnet.data.dense.objects import ObjectDataset, ObjectSample, choose_view
from stepsnet.errors import UsageError
from tests.dense_models import SIDE, boxes_of, coco_folder, document, polygon, runs


def load(root: Path, *, masks: bool = True) -> Objects:
    return load_coco(DataConfig(kind="coco", root=str(root)), masks=masks)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = document(5)
    change(content)
    return content


def dataset(objects: Objects, augment: AugmentConfig | None = None, img_size: int = SIDE) -> ObjectDataset:
    return ObjectDataset(
        objects.train, augment, img_size=img_size, max_size=2 * img_size, masks=True, seed=0, strict=False
    )


def sample(data: ObjectDataset, index: int = 0, epoch: int = 0) -> ObjectSample:
    found = data[epoch, index]
    assert found is not None
    return found


def test_category_ids_with_gaps_become_consecutive_labels(tmp_path: Path) -> None:
    objects = load(coco_folder(tmp_path))
    assert (objects.classes, objects.category_ids) == (("tall", "wide"), (3, 7))
    assert [each.label for each in objects.train.images[0].objects] == [1, 2]


def test_images_without_objects_are_kept_and_counted(tmp_path: Path) -> None:
    objects = load(coco_folder(tmp_path))
    assert (len(objects.train.images), objects.train.counts["empty"]) == (5, 1)
    assert len(sample(dataset(objects), 4).labels) == 0


@pytest.mark.parametrize("shape", [polygon, runs])
def test_polygons_and_runs_decode_to_the_same_pixels(shape: Callable[..., Any]) -> None:
    box = (10, 20, 15, 8)
    rows, columns = np.nonzero(decode_mask(shape(box), SIDE, SIDE))
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (10, 20, 25, 28)


def test_boxes_and_masks_of_a_sample_have_the_input_size(tmp_path: Path) -> None:
    found = sample(dataset(load(coco_folder(tmp_path)), img_size=2 * SIDE))
    x, y, w, h = boxes_of(1)[3]
    assert found.image.shape == (3, 2 * SIDE, 2 * SIDE)
    assert found.boxes[0].tolist() == [2 * x, 2 * y, 2 * (x + w), 2 * (y + h)]
    assert int(found.masks[0].sum()) == 4 * w * h


def test_a_flip_also_flips_boxes_and_masks(tmp_path: Path) -> None:
    objects = load(coco_folder(tmp_path))
    plain, flipped = sample(dataset(objects)), sample(dataset(objects, AugmentConfig(flip=1.0)))
    torch.testing.assert_close(flipped.image, plain.image.flip(2))
    torch.testing.assert_close(flipped.masks, plain.masks.flip(2))
    torch.testing.assert_close(flipped.boxes[:, [0, 2]], SIDE - plain.boxes[:, [2, 0]])


def test_large_scale_jitter_crops_the_resized_image(tmp_path: Path) -> None:
    data = dataset(load(coco_folder(tmp_path)), AugmentConfig(scale=(0.5, 2.0)))
    sizes = {tuple(sample(data, 0, epoch).image.shape[1:]) for epoch in range(12)}
    assert max(sizes) == (SIDE, SIDE)
    assert min(sizes) < (SIDE, SIDE)
    for epoch in range(12):
        found = sample(data, 0, epoch)
        for box, mask in zip(found.boxes, found.masks, strict=True):
            rows, columns = mask.nonzero(as_tuple=True)
            seen = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (seen - box).abs().max() <= 1.01


def test_multi_scale_training_draws_short_sides_in_steps_of_32() -> None:
    augment = AugmentConfig(short_side=(480, 800))
    sides = {min(choose_view(600, 900, 800, 1333, augment, seed).size) for seed in range(300)}
    assert sides == set(range(480, 801, 32))


def test_the_long_side_is_bounded() -> None:
    assert choose_view(500, 2000, 800, 1333, None, 0).size == (333, 1333)


def test_randomness_depends_only_on_seed_epoch_and_index(tmp_path: Path) -> None:
    data = dataset(load(coco_folder(tmp_path)), AugmentConfig(scale=(0.5, 2.0), flip=0.5))
    torch.testing.assert_close(sample(data, 1, 3).image, sample(data, 1, 3).image)
    assert len({tuple(sample(data, 1, epoch).image.shape) for epoch in range(8)}) > 1


HANDLED = [
    ("no_area", lambda d: d["annotations"][0].update(bbox=[5, 5, 0, 9])),
    ("no_area", lambda d: d["annotations"][0].update(bbox=[SIDE + 5, 5, 10, 9])),
    ("cut", lambda d: d["annotations"][0].update(bbox=[SIDE - 5, 5, 10, 9])),
    ("no_mask", lambda d: d["annotations"][0].update(segmentation=[])),
    ("no_mask", lambda d: d["annotations"][0].update(segmentation=[[1, 2, 3, 4]])),
    ("crowd", lambda d: d["annotations"][1].update(iscrowd=1)),
]


@pytest.mark.parametrize(("count", "change"), HANDLED)
def test_irregular_annotations_are_corrected_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: str, change: Callable[[dict[str, Any]], object]
) -> None:
    objects = load(coco_folder(tmp_path, changed(change)))
    assert objects.train.counts[count] == 1
    assert "training data: 1 " in caplog.text
    assert len(sample(dataset(objects)).labels) == (2 if count == "cut" else 1)


def test_a_box_outside_the_image_is_clipped(tmp_path: Path) -> None:
    objects = load(coco_folder(tmp_path, changed(lambda d: d["annotations"][0].update(bbox=[SIDE - 5, -4, 10, 9]))))
    assert objects.train.images[0].objects[0].box == (SIDE - 5, 0, 5, 5)


def test_masks_are_optional_for_boxes(tmp_path: Path) -> None:
    objects = load(coco_folder(tmp_path, changed(lambda d: d["annotations"][0].pop("segmentation"))), masks=False)
    assert len(objects.train.images[0].objects) == 2


REFUSED = [
    (lambda d: d["annotations"][2].update(image_id=99), "annotation 3 belongs to image 99, which is not in the file"),
    (lambda d: d["annotations"][2].update(category_id=5), "annotation 3 has category 5, which is not in the file"),
    (lambda d: d["images"][1].update(file_name="gone.png"), r"gone.png \(image 2\) is missing in"),
    (lambda d: d["annotations"][2].update(bbox=[1, 2, 3]), "annotation 3 has the box"),
    (lambda d: d["annotations"][2].update(bbox=[1, 2, 3, float("nan")]), "annotation 3 has the box"),
    (
        lambda d: d["annotations"][1]["segmentation"].update(size=[9, 9]),
        r"annotation 2 has a mask of \[9, 9\].*but image 1 is \[64, 64\]",
    ),
    (lambda d: d["annotations"][1]["segmentation"].update(counts=[5, 4]), "annotation 2 has runs that do not add up"),
    (lambda d: d["images"].append(dict(d["images"][0])), "two images have the same id"),
    (lambda d: d["images"][0].pop("height"), "lacks one of id, file_name, height and width"),
    (lambda d: d["annotations"].clear(), "no objects for training"),
    (lambda d: d.pop("categories"), "no list of categories"),
    (lambda d: d["categories"].clear(), "has no categories"),
    (lambda d: d["categories"][0].pop("id"), "the id of the category .* is not a whole number"),
    (lambda d: d["images"][0].update(height="64"), "height or width of the image .* is not a whole number"),
    (lambda d: d["annotations"].append(7), "7 in its annotations is not an object"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_errors_name_file_and_id(tmp_path: Path, change: Callable[..., object], sentence: str) -> None:
    root = coco_folder(tmp_path, changed(change))
    with pytest.raises(UsageError, match=f"annotations_train.json.*{sentence}"):
        load(root)


def test_a_category_only_in_validation_is_refused(tmp_path: Path) -> None:
    valid = document(3, first=6)
    valid["categories"].append({"id": 9, "name": "new"})
    with pytest.raises(UsageError, match=r"annotations_val.json: category 9 \(new\)"):
        load(coco_folder(tmp_path, valid=valid))


@pytest.mark.parametrize(("content", "sentence"), [("{", "is not JSON"), ("[]", "is not in COCO's format")])
def test_a_file_in_another_format_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    coco_folder(tmp_path)
    (tmp_path / "annotations_val.json").write_text(content)
    with pytest.raises(UsageError, match=sentence):
        load(tmp_path)


def test_the_error_for_a_missing_file_names_the_key(tmp_path: Path) -> None:
    coco_folder(tmp_path)
    (tmp_path / "annotations_val.json").rename(tmp_path / "mine.json")
    with pytest.raises(UsageError, match=r"data.valid_annotations=FILE"):
        load(tmp_path)
    config = DataConfig(kind="coco", root=str(tmp_path), valid_annotations="mine.json")
    assert len(load_coco(config, masks=True).valid.images) == 3


def test_an_image_whose_size_differs_from_its_annotations_is_refused(tmp_path: Path) -> None:
    objects = load(coco_folder(tmp_path))
    Image.new("RGB", (10, 12)).save(tmp_path / "images" / "1.png")
    with pytest.raises(UsageError, match=r"1.png \(image 1\) is 10×12, but its annotations say 64×64"):
        sample(dataset(objects))


def test_an_unreadable_image_is_skipped_and_counted(tmp_path: Path) -> None:
    data = dataset(load(coco_folder(tmp_path)))
    (tmp_path / "images" / "1.png").write_bytes(b"not an image")
    assert (data[0, 0], data.skipped) == (None, 1)


def test_compressed_runs_are_read(tmp_path: Path) -> None:
    box = boxes_of(1)[3]
    compressed = encode_mask(decode_mask(runs(box), SIDE, SIDE).astype(bool))
    json.dumps(compressed)
    objects = load(coco_folder(tmp_path, changed(lambda d: d["annotations"][0].update(segmentation=compressed))))
    assert int(sample(dataset(objects)).masks[0].sum()) == box[2] * box[3]


def test_annotations_can_be_given_by_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coco_folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    given = str(tmp_path / "data/annotations_train.json")
    assert load_coco(DataConfig(kind="coco", root="data", annotations=given), masks=False).train.images
