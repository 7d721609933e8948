from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsnet.data.text import sources
from stepsnet.data.text.prepare import train_bpe
from stepsnet.data.text.sources import DatasetRows, Piece, Problems, TextFile, find_sources, part_in_name, units
from stepsnet.data.text.vocabulary import BpeVocabulary
from stepsnet.errors import UsageError

BPE = BpeVocabulary(train_bpe(["it's the cat's mat \n\n and  the   dog, 12 34 " * 20], 290), "test")


def texts(found: list[Any], errors: str = "strict") -> list[Piece]:
    return [piece for unit in units(found, Problems(errors)) for piece in unit]


@given(st.text(alphabet="ab '1.\n \t\u00a0\u2003é", max_size=200), st.integers(1, 12))
def test_tokens_of_pieces_equal_tokens_of_the_whole_text(text: str, unit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "UNIT", unit)
        pieces = list(sources._cut([Piece(text, True)]))
    assert "".join(piece.text for piece in pieces) == text
    assert [token for piece in pieces for token in BPE.encode(piece.text)] == BPE.encode(text)


def test_text_without_white_space_is_cut() -> None:
    pieces = list(sources._cut([Piece("x" * 70_000, False)] * 10 + [Piece("", True)]))
    assert max(len(piece.text) for piece in pieces) <= 1 << 18
    assert "".join(piece.text for piece in pieces) == "x" * 700_000
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_file_is_a_document_and_units_hold_several(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    found = list(units(find_sources([str(tmp_path)]), Problems("strict")))
    assert found == [[Piece("text of a.txt", True), Piece("text of b.txt", True)]]


def test_files_of_the_preparation_itself_are_no_sources(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    for name in ("a.txt", "tokens/preparation.json"):
        (tmp_path / name).write_text("text")
    (source,) = find_sources([str(tmp_path)], out=tmp_path / "tokens")
    assert source.name == "a.txt"


def test_characters_can_be_left_out_across_blocks(tmp_path: Path) -> None:
    text = "".join(chr(0x100 + number % 500) for number in range(100_000))
    (tmp_path / "t.txt").write_text(text)
    (source,) = find_sources([str(tmp_path / "t.txt")], left_out=["t.txt:10-90000"])
    assert "".join(piece.text for piece in source.pieces(Problems("strict"))) == text[:10] + text[90000:]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("wiki.train.raw", "train"), ("wiki.valid.raw", "valid"), ("wiki.test.tokens", "test"),
        ("books_dev.txt.xz", "valid"), ("validation", "valid"), ("latest.txt", "train"),
        ("contest_notes.txt", "train"), ("book.txt", "train"), ("TEST.md", "test"),
    ],
)  # fmt: skip
def test_names_decide_the_part(name: str, part: str) -> None:
    assert part_in_name(name) == part


def test_wikitexts_raw_files_are_recognised_in_their_folder(tmp_path: Path) -> None:
    for name in ("wiki.test.raw", "wiki.train.raw", "wiki.valid.raw"):
        (tmp_path / name).write_text(f" = {name} = \n")
    found = find_sources([str(tmp_path)])
    assert [(source.part, source.name) for source in found] == [
        (p, f"wiki.{p}.raw") for p in ("train", "valid", "test")
    ]


def test_explicit_parts_override_names(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt", "train.txt"):
        (tmp_path / name).write_text(name)
    found = find_sources(
        [str(tmp_path / "one.txt")], valid=[str(tmp_path / "train.txt")], test=[str(tmp_path / "two.txt")]
    )
    assert {source.name: source.part for source in found} == {
        "one.txt": "train",
        "train.txt": "valid",
        "two.txt": "test",
    }


LINES = ["", " = Title = \n", "", " A line . \n", " Another . \n"]  # rows as in Salesforce/wikitext


def test_a_data_set_saved_on_disk_is_recognised(tmp_path: Path) -> None:
    splits = {name: datasets.Dataset.from_dict({"text": LINES}) for name in ("train", "validation", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "set"))
    found = find_sources([str(tmp_path / "set")])
    assert [source.part for source in found] == ["train", "valid", "test"]
    assert texts(found[:1]) == [Piece("".join(LINES), True)]


def test_rows_that_are_not_lines_are_documents() -> None:
    assert texts([DatasetRows("set", "train", [{"text": "one"}, {"text": "two"}])]) == [
        Piece("one", True),
        Piece("two", True),
    ]


def test_a_hub_data_set_streams_its_default_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(name: str, config: str | None, *, streaming: bool) -> datasets.IterableDatasetDict:
        asked.append((name, config, streaming))
        rows = datasets.Dataset.from_dict({"text": LINES}).to_iterable_dataset()
        return datasets.IterableDatasetDict({"train": rows, "validation": rows})

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = find_sources(["Salesforce/wikitext"])
    find_sources(["Salesforce/wikitext:wikitext-2-raw-v1"])
    assert asked == [
        ("Salesforce/wikitext", "wikitext-103-raw-v1", True),
        ("Salesforce/wikitext", "wikitext-2-raw-v1", True),
    ]
    assert [source.part for source in found] == ["train", "valid"]
    assert "".join(piece.text for piece in texts(found[:1])) == "".join(LINES)


def test_an_unreachable_hub_raises_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(UsageError, match=r"Salesforce/wikitext could not be downloaded: no route\."):
        find_sources(["Salesforce/wikitext"])


def test_the_error_names_a_missing_column(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"content": ["x"]}).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(UsageError, match="no column 'text', only content"):
        find_sources([str(tmp_path / "set")])
    assert texts(find_sources([str(tmp_path / "set")], column="content")) == [Piece("x", True)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"names": ["nowhere.txt"]}, "nowhere.txt is neither a file"),
        ({"names": ["test.txt"]}, "there is no training text"),
        ({"names": ["train.txt"], "left_out": ["train.txt:5-5"]}, "not FILE:START-STOP"),
        ({"names": ["train.txt"], "left_out": ["other.txt:0-5"]}, "has other.txt, which is not one of the files"),
        ({"names": ["train.txt"], "left_out": ["train.txt:0-1", "train.txt:2-3"]}, "has train.txt twice; only one"),
        ({"names": ["b/train.txt", "a/train.txt"], "left_out": ["train.txt:0-1"]}, "2 files have this name"),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.txt", "test.txt", "a/train.txt", "b/train.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("text")
    with pytest.raises(UsageError, match=sentence):
        find_sources(**words)


def test_characters_are_left_out_of_the_file_of_that_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(f"{name}/book.txt").write_text("text")
    found = find_sources(["a/book.txt", "b/book.txt"], left_out=["b/book.txt:1-3"])
    assert [source.left_out for source in found if isinstance(source, TextFile)] == [(0, 0), (1, 3)]


def test_a_changed_file_is_another_source(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("one")
    before = TextFile(path, "train").identity()
    path.write_text("three")
    assert TextFile(path, "train").identity() != before
