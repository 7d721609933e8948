from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepsnet.data.config import IMAGE_KINDS, TEXT_KINDS, AugmentConfig, DataConfig
from stepsnet.data.images import readers
from stepsnet.data.images.readers import load_images
from stepsnet.data.text import corpora
from stepsnet.data.text.corpora import load_text
from stepsnet.errors import UsageError


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "cifar01"}, "nearest: cifar10"),
        ({"kind": "text", "seq_len": 0}, "data.seq_len is 0"),
        ({"kind": "digits", "img_size": -1}, "data.img_size is -1"),
        ({"kind": "text", "valid_fraction": 1.0}, "data.valid_fraction is 1.0"),
        ({"kind": "image_folder", "crop_pct": 1.2}, "data.crop_pct is 1.2"),
    ],
)
def test_the_error_for_invalid_data_settings_names_the_key(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        DataConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"crop": "resize"}, "nearest: resized"),
        ({"flip": 1.5}, "augment.flip is 1.5"),
        ({"cutmix": -1.0}, "augment.cutmix is -1.0"),
        ({"crop_min_scale": 0.0}, "augment.crop_min_scale is 0.0"),
        ({"randaugment": 11}, "augment.randaugment is 11"),
        ({"scale": (0.0, 1.0)}, "augment.scale is 0.0,1.0"),
        ({"short_side": (0, 800)}, "augment.short_side is 0,800"),
    ],
)
def test_the_error_for_invalid_augmentation_names_the_key(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        AugmentConfig(**changes)


def test_every_kind_has_a_reader() -> None:
    assert (set(readers.READERS), set(corpora.READERS)) == (set(IMAGE_KINDS), set(TEXT_KINDS))


@pytest.mark.parametrize(("kind", "load"), [("digits", load_images), ("python_docs", load_text)])
def test_a_root_for_embedded_data_is_refused(kind: str, load: Callable[[DataConfig], object]) -> None:
    with pytest.raises(UsageError, match=rf"data\.root=elsewhere has no effect: data\.kind={kind} needs no files"):
        load(DataConfig(kind=kind, root="elsewhere"))
