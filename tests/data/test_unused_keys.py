"""Which `data.*` keys have no effect depends on the files: a validation part, one file, a prepared text."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.data.text.prepare import Request, prepare
from stepsnet.data.text.sources import find_sources
from stepsnet.data.unused import unused_keys
from tests.dense_models import mask_folder

FRACTION = {"data.valid_fraction"}
FILES = {"data.pattern", "data.strict"}


def unused(kind: str, root: Path, **changes: str) -> set[str]:
    return set(unused_keys(DataConfig(kind=kind, root=str(root), **changes)))  # type: ignore[arg-type]


def make_folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_class_folders_are_split_unless_there_is_a_validation_folder(tmp_path: Path) -> None:
    own = make_folders(tmp_path / "own", "train/cat", "val/cat")
    whole = make_folders(tmp_path / "whole", "cat", "dog")
    assert unused("image_folder", own) == FRACTION
    assert unused("image_folder", whole) == set()
    assert unused("image_folder", whole, valid=str(own / "val")) == FRACTION
    why = unused_keys(DataConfig(kind="image_folder", root=str(own)))["data.valid_fraction"]
    assert why == f"because the validation data are in {own / 'val'}, not split from those for training"


@pytest.mark.parametrize("folders", [("train/images", "val/images"), ("images/training", "images/validation")])
def test_masks_are_split_unless_folders_or_lists_do_it(tmp_path: Path, folders: tuple[str, ...]) -> None:
    listed = mask_folder(tmp_path / "listed")
    assert unused("mask_folder", listed) == FRACTION
    (listed / "val.txt").unlink()
    assert unused("mask_folder", listed) == set()
    assert unused("mask_folder", make_folders(tmp_path / "parts", *folders)) == FRACTION


def test_text_files_are_split_unless_there_is_a_validation_text(tmp_path: Path) -> None:
    book = tmp_path / "raw" / "book.txt"
    book.parent.mkdir()
    book.write_text("a b c")
    assert unused("text", book) == FILES
    assert unused("text", book.parent) == set()
    assert unused("text", book.parent, valid=str(book)) == FRACTION
    assert unused("text", book, valid=str(book.parent)) == FRACTION
    assert unused("text", book, valid=str(book)) == FRACTION | FILES


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_prepared_text_is_split_unless_it_has_a_validation_part(tmp_path: Path, kind: str) -> None:
    (tmp_path / "raw").mkdir()
    for name in ("a.txt", "books_valid.txt"):
        (tmp_path / "raw" / name).write_text("It was a dark and stormy night.\n" * 200)
    for given, expected in (("raw", FRACTION | FILES), ("raw/a.txt", FILES)):
        out = tmp_path / f"tokens of {given.replace('/', ' ')}"
        prepare(Request(out=out, sources=find_sources([str(tmp_path / given)]), vocabulary=300, sample_mb=1))
        assert unused(kind, out) == expected


def test_data_that_are_missing_are_left_to_their_reader(tmp_path: Path) -> None:
    assert unused("image_folder", tmp_path / "nowhere") == set()
    assert unused("digits", Path()) == set()
