"""Where raw text comes from: files, folders, and data sets of the `datasets` library. Every one streams pieces of documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stepsnet.data.text.unpack import Problems, decoded
from stepsnet.errors import UsageError
from stepsnet.optional import require

PARTS = ("train", "valid", "test")
UNIT = 1 << 16  # characters that are encoded at once
_LONGEST_WORD = 1 << 18  # what has no white space for this long is cut where it stands

_PART_IN_NAME = re.compile(r"(?:^|[^a-z])(train|valid|validation|val|dev|test)(?:[^a-z]|$)")
_PART_OF = {"train": "train", "test": "test"} | dict.fromkeys(("valid", "validation", "val", "dev"), "valid")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_HUB_CONFIGS = {"Salesforce/wikitext": "wikitext-103-raw-v1"}  # which of a data set's configurations is meant where none is given


class Piece(NamedTuple):
    """Some text, and whether a document ends with it."""

    text: str
    ends: bool


Unit = list[Piece]


class Source(Protocol):
    """One place that text comes from."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> str: ...

    def identity(self) -> list[Any]:
        """What tells this source from another, or from itself after a change."""

    def pieces(self, problems: Problems) -> Iterator[Piece]:
        """The text in order, in pieces of any size."""


@dataclass(frozen=True)
class FileSource:
    """A file is one document. `left_out` are characters [start, stop) of it to do without."""

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
        yield Piece("", True)


@dataclass(frozen=True)
class RowSource:
    """One split of a data set. A row that is empty or ends with a newline is a line of a longer text (WikiText), any other a document."""

    name: str
    part: str
    rows: Iterable[Mapping[str, Any]]
    column: str = "text"

    def identity(self) -> list[Any]:
        return [self.name, self.part, self.column, len(self.rows) if isinstance(self.rows, Sized) else None]

    def pieces(self, problems: Problems) -> Iterator[Piece]:  # noqa: ARG002  # the library hands out text that is decoded already
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
    """All text in pieces of about UNIT characters at most, gathered to units of about as many.

    A piece ends only before white space that follows something else. No token of a byte-level BPE reaches over such a place, so
    encoding piece by piece gives the very tokens of the whole document.
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
            place = _last_place(waiting, UNIT) or (_LONGEST_WORD if len(waiting) > _LONGEST_WORD else 0)
            if not place:
                break
            yield Piece(waiting[:place], False)
            waiting = waiting[place:]
        if ends:
            yield Piece(waiting, True)
            waiting = ""
    if waiting:
        yield Piece(waiting, False)


def _last_place(text: str, limit: int) -> int:
    """The last place up to `limit` (or, where there is none, the first behind it) to cut at; 0: none."""
    for place in (*range(limit, 0, -1), *range(limit + 1, len(text))):
        if text[place] in " \n" and not text[place - 1].isspace():
            return place
    return 0


def find_sources(
    names: Sequence[str], *, valid: Sequence[str] = (), test: Sequence[str] = (), left_out: Sequence[str] = (), column: str = "text"
) -> list[Source]:
    """What the user's words mean: files, folders, data sets saved on disk, names on the hub. Their own names tell train from test."""
    ranges = dict(_parse_range(word) for word in left_out)
    found: list[Source] = []
    for part, words in ((None, names), ("valid", valid), ("test", test)):
        for word in words:
            found += _find(word, part, ranges, column)
    unused = ranges.keys() - {source.name for source in found}
    if unused:
        raise UsageError(f"--leave-out names {unused.pop()}, which is not among the files.")
    if not any(source.part == "train" for source in found):
        raise UsageError("there is no training text among the files; their names say train, valid or test, and any other name is train.")
    return sorted(found, key=lambda source: PARTS.index(source.part))  # stable: within a part the user's order stays


def _find(word: str, part: str | None, ranges: Mapping[str, tuple[int, int]], column: str) -> list[Source]:
    path = Path(word).expanduser()
    if path.is_dir():
        if any((path / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            return _rows(require("datasets", extra="text").load_from_disk(str(path)), word, part, column)
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
        if not files:
            raise UsageError(f"{word} is an empty folder.")
        return [source for file in files for source in _find(str(file), part, ranges, column)]
    if path.is_file():
        return [FileSource(path, part or part_in_name(path.name), ranges.get(path.name, (0, 0)))]
    if _HUB_NAME.fullmatch(word) and not path.suffix:
        return _rows(_from_hub(word), word, part, column)
    raise UsageError(f"{word} is neither a file or folder nor the name of a data set, such as Salesforce/wikitext.")


def part_in_name(name: str) -> str:
    """wiki.valid.raw and books_dev.txt.xz are for validation; a name that says nothing is for training."""
    match = _PART_IN_NAME.search(name.lower())
    return _PART_OF[match[1]] if match else "train"


def _from_hub(word: str) -> Any:
    library = require("datasets", extra="text")
    name, _, config = word.partition(":")
    try:
        return library.load_dataset(name, config or _HUB_CONFIGS.get(name), streaming=True)
    except (OSError, ValueError, library.exceptions.DatasetsError) as reason:
        raise UsageError(f"the data set {word} could not be fetched: {reason}".rstrip(".") + ".") from reason


def _rows(dataset: Any, name: str, part: str | None, column: str) -> list[Source]:
    splits: dict[str, Any] = dict(dataset) if hasattr(dataset, "keys") else {part or "train": dataset}
    for rows in splits.values():
        columns = list(rows.features or [column])
        if column not in columns:
            raise UsageError(f"{name} has no column {column!r}, but {', '.join(columns)}; --column chooses one.")
    return [RowSource(f"{name} ({split})", part or part_in_name(split), rows, column) for split, rows in splits.items()]


def _parse_range(word: str) -> tuple[str, tuple[int, int]]:
    match = re.fullmatch(r"(.+):(\d+)-(\d+)", word)
    if match is None or int(match[2]) >= int(match[3]):
        raise UsageError(f"--leave-out {word} is not FILE:START-STOP, such as books_valid.txt.xz:0-438856 (characters).")
    return match[1], (int(match[2]), int(match[3]))
