"""Sources of raw text: files, folders, and data sets of the `datasets` library. Each streams pieces of documents.

Files are unpacked (gzip, xz, zstd) and decoded block by block. Damage is reported with its position.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from stepsnet.errors import UsageError
from stepsnet.optional import require

PARTS = ("train", "valid", "test")
UNIT = 1 << 16  # characters that are encoded at once
_LONGEST_WORD = 1 << 18  # longer text without white space is cut anywhere
_FILE_BLOCK = 1 << 16  # bytes read at once
_ZSTD_BLOCK = 1 << 12  # packed bytes read at once: a block may unpack to a hundred times its size
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

_PART_IN_NAME = re.compile(r"(?:^|[^a-z])(train|valid|validation|val|dev|test)(?:[^a-z]|$)")
_PART_OF = {"train": "train", "test": "test"} | dict.fromkeys(("valid", "validation", "val", "dev"), "valid")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_HUB_CONFIGS = {"Salesforce/wikitext": "wikitext-103-raw-v1"}  # default configurations of data sets


class Piece(NamedTuple):
    """Some text, and whether a document ends after it."""

    text: str
    ends: bool


Unit = list[Piece]


class Source(Protocol):
    """One file or data set split."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> str: ...

    def identity(self) -> list[Any]:
        """Values that differ between sources, and change when the source changes."""

    def pieces(self, problems: Problems) -> Iterator[Piece]:
        """The text in order, in pieces of any size."""


@dataclass(frozen=True)
class TextFile:
    """A file as one document, without the characters [start, stop) of `left_out`."""

    path: Path
    part: str
    left_out: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return self.path.name

    def identity(self) -> list[Any]:
        status = self.path.stat()
        return [str(self.path.resolve()), status.st_size, status.st_mtime_ns, *self.left_out]

    def pieces(self, problems: Problems) -> Iterator[Piece]:
        start, stop = self.left_out
        position = 0
        for text in decoded(self.path, problems):
            kept = text[: max(start - position, 0)] + text[max(stop - position, 0) :] if start < stop else text
            position += len(text)
            yield Piece(kept, False)
        if position <= start < stop:
            place = f"{self.name}:{start}-{stop}"
            raise UsageError(f"--leave-out {place} has no effect: the file has {position} characters.")
        yield Piece("", True)


@dataclass(frozen=True)
class DatasetRows:
    """One split of a data set. Empty rows and rows with a final newline are lines of one text (WikiText)."""

    name: str
    part: str
    rows: Iterable[Mapping[str, Any]]
    column: str = "text"

    def identity(self) -> list[Any]:
        return [self.name, self.part, self.column, len(self.rows) if isinstance(self.rows, Sized) else None]

    def pieces(self, problems: Problems) -> Iterator[Piece]:  # noqa: ARG002  # the library returns decoded text
        line = False
        for row in self.rows:
            text = row[self.column]
            if not isinstance(text, str):
                raise UsageError(f"{self.name}: column {self.column!r} holds {type(text).__name__}, not text.")
            line = not text or text.endswith("\n")
            yield Piece(text, not line)
        if line:
            yield Piece("", True)


def units(sources: Sequence[Source], problems: Problems) -> Iterator[Unit]:
    """All text as units of about UNIT characters, made of pieces of at most about UNIT characters.

    Pieces are cut only before white space that follows other characters. No token of a byte-level BPE crosses such a
    position, so encoding by pieces gives the same tokens as encoding the whole document.
    """
    unit: Unit = []
    size = 0
    for source in sources:
        for piece in _cut(source.pieces(problems)):
            if size + len(piece.text) > UNIT and unit:
                yield unit
                unit, size = [], 0
            unit.append(piece)
            size += len(piece.text)
    if unit:
        yield unit


def _cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
    waiting = ""
    for text, ends in pieces:
        waiting += text
        while len(waiting) > UNIT:
            cut = _cut_position(waiting, UNIT) or (_LONGEST_WORD if len(waiting) > _LONGEST_WORD else 0)
            if not cut:
                break
            yield Piece(waiting[:cut], False)
            waiting = waiting[cut:]
        if ends:
            yield Piece(waiting, True)
            waiting = ""
    if waiting:
        yield Piece(waiting, False)


def _cut_position(text: str, limit: int) -> int:
    """The last position up to `limit` to cut at, or else the first one after it; 0: none."""
    for position in (*range(limit, 0, -1), *range(limit + 1, len(text))):
        if text[position] in " \n" and not text[position - 1].isspace():
            return position
    return 0


def find_sources(
    names: Sequence[str], *, valid: Sequence[str] = (), test: Sequence[str] = (), left_out: Sequence[str] = (),
    column: str = "text", out: Path | None = None,
) -> list[Source]:
    """Sources from files, folders, saved data sets and hub names. Their names decide train, valid or test.

    Files in `out`, which the preparation writes itself, are left out.
    """
    found: list[Source] = []
    for part, words in ((None, names), ("valid", valid), ("test", test)):
        for word in words:
            found += _find(word, part, column, out)
    for word in left_out:
        name, characters = _parse_range(word)
        found = _without(found, name, characters)
    if not any(source.part == "train" for source in found):
        raise UsageError("there is no training text: by their names, all files are for validation or test.")
    return sorted(found, key=lambda source: PARTS.index(source.part))  # stable: keeps the order within a part


def _without(sources: Sequence[Source], name: str, characters: tuple[int, int]) -> list[Source]:
    """The sources, one of them without these characters: the file of that path, or the only file of that name."""
    files = [source for source in sources if isinstance(source, TextFile)]
    named = [file for file in files if str(file.path) == name] or [file for file in files if file.name == name]
    if not named:
        raise UsageError(f"--leave-out has {name}, which is not one of the files.")
    if len(named) > 1:
        raise UsageError(f"--leave-out has {name}, but {len(named)} files have this name; give the path of one.")
    if named[0].left_out != (0, 0):
        raise UsageError(f"--leave-out has {name} twice; only one range of a file can be left out.")
    changed = replace(named[0], left_out=characters)
    return [changed if source is named[0] else source for source in sources]


def _find(word: str, part: str | None, column: str, out: Path | None) -> list[Source]:
    path = Path(word).expanduser()
    if path.is_dir():
        if any((path / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            return _rows(require("datasets", extra="text").load_from_disk(str(path)), word, part, column)
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
        files = [file for file in files if out is None or not file.resolve().is_relative_to(out.resolve())]
        if not files:
            raise UsageError(f"{word} is an empty folder.")
        return [source for file in files for source in _find(str(file), part, column, out)]
    if path.is_file():
        return [TextFile(path, part or part_in_name(path.name))]
    if _HUB_NAME.fullmatch(word) and not path.suffix:
        return _rows(_from_hub(word), word, part, column)
    raise UsageError(f"{word} is neither a file or folder nor the name of a data set, such as Salesforce/wikitext.")


def part_in_name(name: str) -> str:
    """wiki.valid.raw and books_dev.txt.xz are for validation; names without such a word are for training."""
    match = _PART_IN_NAME.search(name.lower())
    return _PART_OF[match[1]] if match else "train"


def _from_hub(word: str) -> Any:
    library = require("datasets", extra="text")
    name, _, config = word.partition(":")
    try:
        return library.load_dataset(name, config or _HUB_CONFIGS.get(name), streaming=True)
    except (OSError, ValueError, library.exceptions.DatasetsError) as reason:
        raise UsageError(f"the data set {word} could not be downloaded: {reason}".rstrip(".") + ".") from reason


def _rows(dataset: Any, name: str, part: str | None, column: str) -> list[Source]:
    splits: dict[str, Any] = dict(dataset) if hasattr(dataset, "keys") else {part or "train": dataset}
    for rows in splits.values():
        columns = list(rows.features or [column])
        if column not in columns:
            raise UsageError(f"{name} has no column {column!r}, only {', '.join(columns)}; --column chooses one.")
    return [
        DatasetRows(f"{name} ({split})", part or part_in_name(split), rows, column) for split, rows in splits.items()
    ]


def _parse_range(word: str) -> tuple[str, tuple[int, int]]:
    match = re.fullmatch(r"(.+):(\d+)-(\d+)", word)
    if match is None or int(match[2]) >= int(match[3]):
        raise UsageError(f"--leave-out {word} is not FILE:START-STOP in characters, such as book.txt.xz:0-438856.")
    return match[1], (int(match[2]), int(match[3]))


class BlockReader(Protocol):
    """An object that reads bytes block by block."""

    def read(self, size: int, /) -> bytes: ...


class Problems:
    """Handles damage: with "strict", the first raises an error; with "replace", each is recorded and skipped."""

    def __init__(self, errors: str) -> None:
        if errors not in ("strict", "replace"):
            raise UsageError(f"errors is {errors!r}, but can be 'strict' or 'replace'.")
        self.strict = errors == "strict"
        self.found: list[str] = []

    def add(self, sentence: str, remedy: str) -> None:
        if self.strict:
            raise UsageError(f"{sentence}; --errors replace {remedy}.")
        self.found.append(sentence)


def decoded(path: Path, problems: Problems) -> Iterator[str]:
    """The text of one file. Errors have the offset in the text (invalid UTF-8) or in the file (other damage)."""
    decoder = _Utf8(path, problems)
    with path.open("rb") as file, _unpacking(file) as (kind, reader):
        while True:
            try:
                block = reader.read(_FILE_BLOCK)
            except (OSError, EOFError, lzma.LZMAError, zlib.error, _DamageError) as reason:
                if kind == "plain":
                    raise UsageError(f"{path} cannot be read: {reason}.") from reason
                where = f"near byte {file.tell()} of the file, after {decoder.seen} bytes of text"
                problems.add(f"{path.name}: damaged {kind} archive {where}: {reason}", "keeps the text before that")
                break
            if not block:
                break
            yield decoder.decode(block)
    yield decoder.decode(b"", last=True)
    decoder.report()


class _Utf8:
    """Decodes block by block and counts offsets."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.path, self.problems = path, problems
        self.seen = 0
        """Bytes received."""
        self.first: str | None = None
        self.replaced = 0
        self._rest = b""

    def decode(self, block: bytes, last: bool = False) -> str:
        data = self._rest + block
        base = self.seen - len(self._rest)
        self.seen += len(block)
        self._rest = b""
        text, start = [], 0
        while True:
            try:
                text.append(data[start:].decode() if start else data.decode())
                break
            except UnicodeDecodeError as error:
                text.append(data[start : start + error.start].decode())
                begin, end = start + error.start, start + error.end
                if end == len(data) and not last and error.reason == "unexpected end of data":
                    self._rest = data[begin:]  # the rest of this character is in the next block
                    break
                self._replace(data[begin], base + begin)
                text.append("\N{REPLACEMENT CHARACTER}")
                start = end
        return "".join(text)

    def _replace(self, value: int, offset: int) -> None:
        self.replaced += 1
        if self.first is None:
            self.first = f"{self.path.name}: byte 0x{value:02x} at offset {offset} of the text is not UTF-8"
            if self.problems.strict:
                self.problems.add(self.first, "replaces it by U+FFFD")

    def report(self) -> None:
        if self.first is not None:
            more = f" (the first of {self.replaced} places)" if self.replaced > 1 else ""
            self.problems.add(self.first + more, "replaces it by U+FFFD")


class _DamageError(Exception):
    """A truncated or invalid zstd archive."""


class _ZstdReader:
    """Reads zstd and detects truncated files, which the library's own reader does not."""

    def __init__(self, file: BinaryIO) -> None:
        self._library: Any = require("zstandard", extra="text")
        self._file = file
        self._frame: Any = None

    def read(self, size: int) -> bytes:  # noqa: ARG002  # returns what one packed block gives
        out = b""
        while not out:
            packed = self._file.read(_ZSTD_BLOCK)
            if not packed:
                if self._frame is not None:
                    raise _DamageError("it ends in the middle of a frame")
                return b""
            out = self._unpack(packed)
        return out

    def _unpack(self, packed: bytes) -> bytes:
        out = b""
        while packed:
            frame = self._frame or self._library.ZstdDecompressor().decompressobj()
            try:
                out += frame.decompress(packed)
            except self._library.ZstdError as reason:
                raise _DamageError(str(reason)) from reason
            self._frame, packed = (None, frame.unused_data) if frame.eof else (frame, b"")
        return out


@contextmanager
def _unpacking(file: BinaryIO) -> Iterator[tuple[str, BlockReader]]:
    """The kind of a file by its first bytes, not its name, and a reader of its content."""
    head = file.read(6)
    file.seek(0)
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "plain")
    if kind == "gzip":
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield kind, cast(io.BufferedIOBase, unpacked)
    elif kind == "xz":
        with lzma.LZMAFile(file) as unpacked:
            yield kind, unpacked
    elif kind == "zstd":
        yield kind, _ZstdReader(file)
    else:
        yield kind, file
