from __future__ import annotations

import gzip
import logging
import lzma
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsnet.data.config import DataConfig
from stepsnet.data.text import windows as text_module
from stepsnet.data.text.corpora import load_text
from stepsnet.data.text.windows import IGNORED, MappedTokens, Text, TextStore, TrainWindows, ValidWindows
from stepsnet.errors import UsageError


def store(*pieces: bytes) -> TextStore:
    return TextStore([np.frombuffer(piece, dtype=np.uint8) for piece in pieces])


def load(root: Path | str, **changes: object) -> Text:
    return load_text(DataConfig(kind="text", root=str(root), seq_len=4, **changes))  # type: ignore[arg-type]


def whole(part: TextStore) -> bytes:
    return part.read(0, len(part)).tobytes()


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=5), st.data())
def test_a_store_reads_like_its_concatenated_pieces(pieces: list[bytes], data: st.DataObject) -> None:
    joined = b"".join(pieces)
    first, start, stop, last = sorted(data.draw(st.tuples(*[st.integers(0, len(joined))] * 4)))
    if start < stop:
        assert store(*pieces).part(first, last).read(start - first, stop - first).tobytes() == joined[start:stop]


def test_validation_windows_cover_every_byte_as_a_target_once() -> None:
    windows = ValidWindows(store(b"abcdefghij"), 4)
    targets = np.concatenate([windows[0, index].window[1:] for index in range(len(windows))])
    assert bytes(targets[targets != IGNORED].astype(np.uint8)) == b"bcdefghij"
    assert windows[0, 2].window.tolist() == [ord("i"), ord("j"), IGNORED, IGNORED, IGNORED]


def test_neighbouring_windows_share_one_byte() -> None:
    windows = ValidWindows(store(b"abcdefghij"), 4)
    assert windows[0, 0].window[-1] == windows[0, 1].window[0]


@given(st.integers(8, 60), st.integers(0, 30))
def test_training_windows_are_always_full(size: int, epoch: int) -> None:
    windows = TrainWindows(store(bytes(range(size))), 4, 7)
    assert len(windows) >= 1
    for index in range(len(windows)):
        start = windows[epoch, index].window[0]
        assert windows[epoch, index].window.tolist() == list(range(start, start + 5))


def test_training_windows_shift_from_epoch_to_epoch_and_not_within_one() -> None:
    windows = TrainWindows(store(bytes(range(64))), 8, 7)
    starts = {int(windows[epoch, 0].window[0]) for epoch in range(40)}
    assert starts == set(range(8))
    assert int(windows[3, 2].window[0]) - int(windows[3, 0].window[0]) == 16


@pytest.mark.parametrize(("suffix", "pack"), [("txt", bytes), ("txt.gz", gzip.compress), ("txt.xz", lzma.compress)])
def test_packed_files_read_like_plain_ones(tmp_path: Path, suffix: str, pack: object) -> None:
    assert callable(pack)
    (tmp_path / f"t.{suffix}").write_bytes(pack(b"0123456789" * 5))
    text = load(tmp_path / f"t.{suffix}")
    assert whole(text.train) + whole(text.valid) == b"0123456789" * 5
    assert len(text.valid) == 5


def test_a_folder_is_read_in_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name, content in {"b/2.txt": b"second, ", "a.txt": b"first! ", "c.md": b"third..", ".git/x": b"hidden"}.items():
        (tmp_path / name).write_bytes(content)
    text = load(tmp_path)
    assert whole(text.train) + whole(text.valid) == b"first! second, third.."
    some = load(tmp_path, pattern="**/*.txt")
    assert whole(some.train) + whole(some.valid) == b"first! second, "


def test_validation_can_be_another_file(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"t" * 20)
    (tmp_path / "valid.txt").write_bytes(b"v" * 10)
    text = load(tmp_path / "train.txt", valid=str(tmp_path / "valid.txt"))
    assert (whole(text.train), whole(text.valid)) == (b"t" * 20, b"v" * 10)


def test_validation_text_that_is_trained_on_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 20)
    (tmp_path / "b.txt").write_bytes(b"b" * 10)
    text = load(tmp_path, valid=str(tmp_path / "b.txt"))
    assert (whole(text.train), whole(text.valid)) == (b"a" * 20 + b"b" * 10, b"b" * 10)
    assert "b.txt is part of the training data" in caplog.text


def test_a_large_file_is_mapped_and_pickled_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAPPED_FROM", 1000)
    (tmp_path / "large.txt").write_bytes(b"0123456789" * 1000)
    text = load(tmp_path / "large.txt")
    assert isinstance(text.train.pieces[0], MappedTokens)
    packed = pickle.dumps(text.train)
    assert len(packed) < 1500
    assert whole(pickle.loads(packed)) == b"0123456789" * 900


def test_a_file_that_is_not_text_is_logged_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "good.txt").write_bytes(b"x" * 30)
    (tmp_path / "bad.bin").write_bytes(b"\0\1\2")
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"text" * 99)[:-8])
    with caplog.at_level(logging.WARNING, logger="stepsnet.data"):
        text = load(tmp_path)
    assert len(text.train) + len(text.valid) == 30
    assert ["bad.bin" in caplog.text, "cut.xz" in caplog.text] == [True, True]


def test_with_strict_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_bytes(b"x" * 30)
    (tmp_path / "bad.bin").write_bytes(b"\0\1\2")
    with pytest.raises(UsageError, match=r"bad\.bin"):
        load(tmp_path, strict=True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "it is empty"), (b"short", "not enough for data.seq_len=4"), (b"\0binary", "zero bytes")],
)
def test_text_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        load(tmp_path / "t.txt")


def test_the_error_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.txt does not exist"):
        load(tmp_path / "nowhere.txt")


@pytest.mark.parametrize("pattern", ["**.md", "/etc/*", ""])
def test_the_error_names_an_invalid_pattern(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.pattern="):
        load(tmp_path, pattern=pattern)


def test_the_error_names_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no readable text files"):
        load(tmp_path)


def test_the_error_for_no_root_says_what_is_expected() -> None:
    with pytest.raises(UsageError, match=r"data\.root is missing"):
        load("")


@given(st.integers(2, 40), st.integers(1, 8), st.data())
def test_sliding_windows_count_every_target_once_with_context(size: int, seq_len: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, seq_len))
    windows = ValidWindows(store(bytes(range(size))), seq_len, stride)
    counted = []
    for index in range(len(windows)):
        sample = windows[0, index]
        targets = sample.window[1:][sample.context :]
        counted += [int(target) for target in targets if target != IGNORED]
        assert sample.context == (seq_len - stride if index else 0)
    assert counted == list(range(1, size))


def test_a_limit_takes_evenly_spread_windows() -> None:
    windows = ValidWindows(store(bytes(range(201))), 2, limit=4)
    assert [int(windows[0, index].window[0]) for index in range(len(windows))] == [0, 50, 100, 150]
    assert len(ValidWindows(store(b"abc"), 2, limit=4)) == 1
