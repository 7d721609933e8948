from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stepsnet.data.text import sources
from stepsnet.data.text.sources import Problems, decoded
from stepsnet.errors import UsageError

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes, "gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress,
}  # fmt: skip
# Pseudo-random, so that the archives are longer than one block of their readers.
TEXT = "".join(f"{number * number:x} é€😀\n" for number in range(30_000))


def read(path: Path, errors: str = "strict") -> tuple[str, list[str]]:
    problems = Problems(errors)
    return "".join(decoded(path, problems)), problems.found


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_and_plain_files_have_the_same_text(tmp_path: Path, kind: str) -> None:
    (tmp_path / "t").write_bytes(PACKERS[kind](TEXT.encode()))
    assert read(tmp_path / "t") == (TEXT, [])


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_concatenated_archives_are_all_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "t").write_bytes(PACKERS[kind](b"first ") + PACKERS[kind](b"second"))
    assert read(tmp_path / "t") == ("first second", [])


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_with_strict_a_truncated_archive_is_refused_with_its_offset(tmp_path: Path, kind: str) -> None:
    whole = PACKERS[kind](TEXT.encode())
    (tmp_path / f"t.txt.{kind}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        UsageError, match=rf"t\.txt\.{kind}: damaged \w+ archive near byte \d+ of the file, after \d+ bytes of text"
    ):
        read(tmp_path / f"t.txt.{kind}")


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_the_text_before_the_damage_is_kept(tmp_path: Path, kind: str) -> None:
    whole = PACKERS[kind](TEXT.encode())
    (tmp_path / "t").write_bytes(whole[: len(whole) // 2])
    text, found = read(tmp_path / "t", "replace")
    assert TEXT.startswith(text.rstrip("\N{REPLACEMENT CHARACTER}"))
    assert len(text) > len(TEXT) // 4
    assert "damaged" in found[0]


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_a_flipped_bit_is_detected(tmp_path: Path, kind: str) -> None:
    content = bytearray(PACKERS[kind](TEXT.encode()))
    content[len(content) // 2] ^= 0x10
    (tmp_path / "t").write_bytes(content)
    if kind == "zst":  # this archive has no checksum, so not all damage can be detected
        assert read(tmp_path / "t", "replace")[0] != TEXT
    else:
        with pytest.raises(UsageError, match=r"damaged|not UTF-8"):  # whichever is found first
            read(tmp_path / "t")


@pytest.mark.parametrize("kind", PACKERS)
def test_the_error_for_invalid_utf8_names_its_offset(tmp_path: Path, kind: str) -> None:
    content = TEXT.encode()[:100_000] + b"\xff" + b"more"
    offset = len(content) - 5
    (tmp_path / "t.txt").write_bytes(PACKERS[kind](content))
    with pytest.raises(
        UsageError, match=rf"t\.txt: byte 0x.. at offset ({offset}|{offset - 1}|{offset - 2}|{offset - 3}) of the text"
    ):
        read(tmp_path / "t.txt")


@given(st.lists(st.one_of(st.text(max_size=5).map(str.encode), st.binary(max_size=3)), max_size=8), st.integers(1, 7))
def test_replacement_equals_that_of_python(pieces: list[bytes], block: int) -> None:
    content = b"".join(pieces)
    decoder = sources._Utf8(Path("t"), Problems("replace"))
    text = "".join(decoder.decode(content[start : start + block]) for start in range(0, len(content), block))
    assert text + decoder.decode(b"", last=True) == content.decode(errors="replace")


def test_replaced_bytes_are_counted_and_the_first_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"ok \xff\xfe\xff end \xe2\x82")
    text, found = read(tmp_path / "t.txt", "replace")
    assert text == "ok ��� end �"
    assert found == ["t.txt: byte 0xff at offset 3 of the text is not UTF-8 (the first of 4 places)"]


def test_other_values_of_errors_are_refused() -> None:
    with pytest.raises(UsageError, match="'strict' or 'replace'"):
        Problems("ignore")
