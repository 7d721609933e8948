from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.data.text.corpora import GUTENBERG_OVERLAPS, load_text
from stepsnet.data.text.windows import Text, TextStore
from stepsnet.errors import UsageError

START = {"valid": 0, "test": 146930}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts whose overlap consists of é, two bytes each, and the rest of other letters."""
    for part in ("valid", "test"):
        start, stop = GUTENBERG_OVERLAPS[part]
        text = "a" * start + "é" * (stop - start) + "ü" * 100
        (tmp_path / f"gutenberg_{part}.txt.xz").write_bytes(lzma.compress(text.encode(), preset=0))
    (tmp_path / "gutenberg_train.txt.xz").write_bytes(lzma.compress(b"train " * 100))
    return tmp_path


def load(folder: Path, valid: str = "") -> Text:
    return load_text(DataConfig(kind="gutenberg", root=str(folder), valid=valid, seq_len=16))


def whole(store: TextStore) -> bytes:
    return store.read(0, len(store)).tobytes()


@pytest.mark.parametrize("part", ["valid", "test"])
def test_the_overlap_with_train_is_left_out(folder: Path, part: str) -> None:
    text = load(folder, part)
    assert whole(text.valid) == b"a" * START[part] + "ü".encode() * 100
    assert whole(text.train) == b"train " * 100


def test_validation_is_the_default(folder: Path) -> None:
    assert whole(load(folder).valid) == whole(load(folder, "valid").valid)


def test_the_error_names_a_missing_file(folder: Path) -> None:
    (folder / "gutenberg_valid.txt.xz").unlink()
    with pytest.raises(UsageError, match=r"gutenberg_valid\.txt\.xz"):
        load(folder)


def test_the_error_names_a_damaged_file(folder: Path) -> None:
    path = folder / "gutenberg_train.txt.xz"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UsageError, match=r"gutenberg_train\.txt\.xz cannot be read"):
        load(folder)


def test_other_parts_are_refused_for_validation(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.valid is 'train'"):
        load(folder, "train")


@pytest.mark.parametrize("missing", ["train", "valid"])
def test_the_error_names_every_file_once(folder: Path, missing: str) -> None:
    (folder / f"gutenberg_{missing}.txt.xz").unlink()
    with pytest.raises(UsageError, match=rf"has no gutenberg_{missing}\.txt\.xz") as caught:
        load(folder)
    assert [str(caught.value).count(f"gutenberg_{part}.txt.xz") for part in ("train", "valid", "test")] == [1, 1, 1]
