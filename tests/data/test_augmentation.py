from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from stepsnet.data.config import AugmentConfig, DataConfig, deit_augment
from stepsnet.data.images.datasets import ArraySource, FileSource, FullTransform, ShiftFlip, make_transform
from stepsnet.data.images.readers import load_images

PHOTO: NDArray[np.uint8] = np.random.default_rng(0).integers(1, 256, (12, 12, 3), dtype=np.uint8)
SOURCE = ArraySource(PHOTO[None], np.zeros(1, dtype=np.int64))
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)


def full(augment: AugmentConfig | None, size: int = 16, crop_pct: float = 1.0) -> FullTransform:
    return FullTransform(augment, size, crop_pct, MEAN, STD)


def test_a_shift_is_a_crop_of_the_padded_image() -> None:
    padded = np.pad(PHOTO, ((3, 3), (3, 3), (0, 0)))
    crops = {padded[top : top + 12, left : left + 12].tobytes() for top in range(7) for left in range(7)}
    shifted = {ShiftFlip(padding=3)(PHOTO, seed).tobytes() for seed in range(2000)}
    assert shifted == crops  # all of them occur, and nothing else


def test_flips_have_the_given_probability() -> None:
    flipped = sum(
        ShiftFlip(flip=0.3)(PHOTO, seed).tobytes() == PHOTO[:, ::-1].tobytes() for seed in np.arange(1000).tolist()
    )
    assert 250 < flipped < 350


@pytest.mark.parametrize(
    ("augment", "size", "fast"),
    [
        (None, 12, True),
        (AugmentConfig(crop="pad", flip=0.5), 12, True),
        (AugmentConfig(crop="pad", flip=0.5), 16, False),
        (AugmentConfig(crop="resized"), 12, False),
        (AugmentConfig(erasing=0.25), 12, False),
    ],
)
def test_the_fast_path_is_used_only_for_settings_it_supports(
    augment: AugmentConfig | None, size: int, fast: bool
) -> None:
    transform = make_transform(SOURCE, augment, DataConfig(kind="digits", img_size=size, crop_pct=1.0), MEAN, STD)
    assert isinstance(transform, ShiftFlip) == fast


def test_images_from_files_never_use_the_fast_path(tmp_path: Any) -> None:
    assert isinstance(
        make_transform(FileSource(tmp_path, []), None, DataConfig(kind="image_folder"), MEAN, STD), FullTransform
    )


def test_validation_resizes_crops_the_centre_and_normalises() -> None:
    grey = Image.fromarray(np.full((40, 60, 3), 127, dtype=np.uint8))
    grey.paste(
        (0, 0, 0), (0, 0, 18, 40)
    )  # left of the centre square after resizing to 20 × 30, and within the cut border
    result = full(None, size=16, crop_pct=0.8)(grey, 0)
    assert result.shape == (3, 16, 16)
    expected = [(127 / 255 - mean) / 0.2 for mean in MEAN]
    assert torch.allclose(result[:, :, -4:].mean(dim=(1, 2)), torch.tensor(expected), atol=1e-4)


@pytest.mark.parametrize(
    "stored", [PHOTO, Image.fromarray(PHOTO), PHOTO[:, :, :1]], ids=["array", "pillow", "one channel"]
)
def test_deit_augmentation_depends_only_on_the_seed(stored: Any) -> None:
    channels = 1 if getattr(stored, "shape", (0, 0, 3))[-1] == 1 else 3
    transform = FullTransform(deit_augment(), 16, 1.0, MEAN[:channels], STD[:channels])
    first = transform(stored, 1)
    torch.rand(7)  # draws of other code
    again, other = transform(stored, 1), transform(stored, 2)
    assert first.shape == (channels, 16, 16)
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_augmentation_does_not_change_torchs_random_state() -> None:
    state = torch.get_rng_state()
    full(deit_augment())(PHOTO, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_used_transform_can_be_pickled() -> None:
    transform = full(deit_augment())
    before = transform(PHOTO, 4)
    assert torch.equal(pickle.loads(pickle.dumps(transform))(PHOTO, 4), before)


@pytest.mark.parametrize(
    "augment",
    [
        AugmentConfig(crop="resized"),
        AugmentConfig(crop="pad"),
        AugmentConfig(flip=0.5),
        AugmentConfig(color_jitter=0.4),
        AugmentConfig(randaugment=9),
        AugmentConfig(erasing=0.9),
    ],
    ids=["resized", "pad", "flip", "color_jitter", "randaugment", "erasing"],
)
def test_each_augmentation_changes_images(augment: AugmentConfig) -> None:
    plain = full(None)(PHOTO, 0)
    assert any(not torch.equal(full(augment)(PHOTO, seed), plain) for seed in range(10))


def test_without_augmentation_training_equals_validation() -> None:
    assert torch.equal(full(AugmentConfig())(PHOTO, 0), full(None)(PHOTO, 1))


def test_randaugment_varies_its_magnitude_and_skips_half_of_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.transforms import v2

    drawn: list[tuple[int, int]] = []

    def note(self: Any, stored: Any) -> Any:
        drawn.append((self.num_ops, self.magnitude))
        return stored

    monkeypatch.setattr(v2.RandAugment, "forward", note)
    transform = full(AugmentConfig(randaugment=9, randaugment_std=0.5), size=12)
    for seed in range(400):
        transform(PHOTO, seed)
    operations, magnitudes = np.array(drawn).T
    assert 0.9 < operations.mean() < 1.1
    assert set(operations.tolist()) == {0, 1, 2}
    assert 885 < magnitudes.mean() < 915  # of 1000, which means 10
    assert 40 < magnitudes.std() < 60
    assert magnitudes.max() <= 1000


def test_the_crop_of_validation_acts_on_images_that_already_have_the_size() -> None:
    whole, centre = (DataConfig(kind="digits", img_size=32, crop_pct=share) for share in (1.0, 0.5))
    images = load_images(whole)
    found = [make_transform(images.valid, None, data, images.mean, images.std) for data in (whole, centre)]
    assert type(found[0]) is not type(found[1])
