"""Text as a sequence of tokens, cut into windows of seq_len + 1; and text files as bytes, large ones memory-mapped."""

from __future__ import annotations

import gzip
import logging
import lzma
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepsnet.data.config import TRAINED_ON, DataConfig, mix
from stepsnet.data.text.vocabulary import ByteVocabulary, Vocabulary
from stepsnet.errors import UsageError

log = logging.getLogger("stepsnet.data")

IGNORED = -100  # target of positions that do not count; the default of torch's cross entropy
MAPPED_FROM = 1 << 22  # bytes; smaller files are read into memory
UNREADABLE = (OSError, EOFError, lzma.LZMAError, ValueError)
Tokens = NDArray[np.unsignedinteger[Any]]
"""Bytes (uint8), or the tokens of a prepared text (uint16, uint32)."""


class MappedTokens:
    """A memory-mapped file, pickled as its path."""

    def __init__(self, path: Path, dtype: str = "uint8") -> None:
        self.path, self.dtype = path, dtype
        self.content: Tokens = np.memmap(path, dtype=dtype, mode="r")

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedTokens, (self.path, self.dtype)


class TextStore:
    """Concatenated pieces of text, or a part [start, stop) of them, addressed by token."""

    def __init__(self, pieces: Sequence[Tokens | MappedTokens], start: int = 0, stop: int | None = None) -> None:
        self.pieces = list(pieces)
        sizes = [len(piece.content if isinstance(piece, MappedTokens) else piece) for piece in self.pieces]
        self.ends: NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
        total = int(self.ends[-1]) if sizes else 0
        self.start, self.stop = start, total if stop is None else stop

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> TextStore:
        return TextStore(self.pieces, self.start + start, self.start + stop)

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop), which may span several pieces."""
        start, stop = start + self.start, min(stop + self.start, self.stop)
        found: list[Tokens] = []
        number = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            piece = self.pieces[number]
            content = piece.content if isinstance(piece, MappedTokens) else piece
            end = int(self.ends[number])
            inside = start - (end - len(content))
            found.append(content[inside : inside + min(stop, end) - start])
            start, number = min(stop, end), number + 1
        return found[0] if len(found) == 1 else np.concatenate(found)


class TextSample(NamedTuple):
    sample_id: int
    window: NDArray[np.int64]
    """seq_len + 1 tokens; the last window of a validation text is padded with IGNORED."""
    context: int = 0
    """Number of targets at the start that do not count, because an earlier window counts them."""


class TextWindows(ABC):
    """Windows by (epoch, index)."""

    store: TextStore
    seq_len: int

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, key: tuple[int, int]) -> TextSample: ...

    def read(self, start: int) -> NDArray[np.int64]:
        content = self.store.read(start, start + self.seq_len + 1)
        window: NDArray[np.int64] = np.full(self.seq_len + 1, IGNORED, dtype=np.int64)
        window[: len(content)] = content
        return window

    @property
    def skipped(self) -> int:
        """Always 0: unreadable files are skipped when the text is loaded."""
        return 0


@dataclass(frozen=True)
class TrainWindows(TextWindows):
    """Windows shifted by an offset from (seed, epoch); one window less leaves space for it."""

    store: TextStore
    seq_len: int
    seed: int

    def __len__(self) -> int:
        return (len(self.store) - self.seq_len) // self.seq_len

    def __getitem__(self, key: tuple[int, int]) -> TextSample:
        epoch, index = key
        return TextSample(index, self.read(index * self.seq_len + mix(self.seed, epoch) % self.seq_len))


@dataclass(frozen=True)
class ValidWindows(TextWindows):
    """Every token but the first is a target once. With a stride below seq_len windows overlap, and earlier tokens are
    context.

    `limit` takes that many windows instead of all, evenly spread over the text.
    """

    store: TextStore
    seq_len: int
    stride: int = 0
    """Distance between windows; 0: seq_len."""
    limit: int = 0

    @property
    def _step(self) -> int:
        return self.stride or self.seq_len

    @property
    def _all(self) -> int:
        return 1 + -(-max(len(self.store) - 1 - self.seq_len, 0) // self._step)

    def __len__(self) -> int:
        return min(self.limit, self._all) if self.limit else self._all

    def __getitem__(self, key: tuple[int, int]) -> TextSample:
        _, index = key
        number = index * self._all // len(self)
        return TextSample(index, self.read(number * self._step), self.seq_len - self._step if number else 0)


@dataclass(frozen=True)
class Text:
    """A data set: tokens for training and validation, and their vocabulary."""

    name: str
    train: TextStore
    valid: TextStore
    vocabulary: Vocabulary = field(default_factory=ByteVocabulary)

    def check(self, seq_len: int) -> None:
        """Refuse a text that is too short."""
        if len(self.train) < 2 * seq_len:
            size = f"{len(self.train)} {self.vocabulary.unit}"
            raise UsageError(f"{self.name}: {size} of training text are not enough for data.seq_len={seq_len}.")
        if len(self.valid) < 2:
            raise UsageError(f"{self.name} has no validation text; set data.valid or a larger data.valid_fraction.")


def load_text_files(config: DataConfig) -> Text:
    """Text files in `root`; validation from `valid`, or the last `valid_fraction` of the text."""
    if not config.root:
        raise UsageError("data.root is missing: give a text file, a folder of text files, or a prepared text.")
    whole = TextStore(_read_all(config.root, config))
    if config.valid:
        trained, validated = ({file.resolve() for file in _files(at, config)} for at in (config.root, config.valid))
        if trained & validated:
            log.warning(TRAINED_ON, config.valid, config.root)
        return Text(config.root, whole, TextStore(_read_all(config.valid, config)))
    cut = len(whole) - round(len(whole) * config.valid_fraction)
    return Text(config.root, whole.part(0, cut), whole.part(cut, len(whole)))


def _files(root: str, config: DataConfig) -> list[Path]:
    path = Path(root).expanduser()
    if not path.exists():
        raise UsageError(f"{root} does not exist; it must be a text file or a folder of text files.")
    if path.is_file():
        return [path]
    try:
        relative = sorted(file.relative_to(path) for file in path.glob(config.pattern) if file.is_file())
    except (ValueError, NotImplementedError) as error:
        raise UsageError(f"data.pattern={config.pattern} is not a pattern such as **/*.md ({error}).") from error
    return [path / name for name in relative if not any(part.startswith(".") for part in name.parts)]


def _read_all(root: str, config: DataConfig) -> list[Tokens | MappedTokens]:
    files = _files(root, config)
    pieces: list[Tokens | MappedTokens] = []
    skipped = 0
    for file in files:
        try:
            piece = _read(file)
        except UNREADABLE as reason:
            if config.strict or Path(root).expanduser().is_file():
                raise _unreadable(file, reason) from reason
            skipped += 1
            log.warning("skipped an unreadable file: %s: %s", file, reason)
            continue
        pieces.append(piece)
    if not pieces:
        raise UsageError(f"{root} has no readable text files ({len(files)} tried, {skipped} unreadable).")
    return pieces


def load_piece(path: Path) -> Tokens | MappedTokens:
    """The bytes of one file; a UsageError if it cannot be read."""
    try:
        return _read(path)
    except UNREADABLE as reason:
        raise _unreadable(path, reason) from reason


def _unreadable(path: Path, reason: Exception) -> UsageError:
    return UsageError(f"{path} cannot be read as text: {reason}.")


def _read(path: Path) -> Tokens | MappedTokens:
    """The unpacked bytes of one file; ValueError if it is not text."""
    unpack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
    piece: Tokens | MappedTokens
    if path.suffix in unpack:
        piece = np.frombuffer(unpack[path.suffix](path.read_bytes()), dtype=np.uint8)
    elif path.stat().st_size >= MAPPED_FROM:
        piece = MappedTokens(path)
    else:
        piece = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    content = piece.content if isinstance(piece, MappedTokens) else piece
    if len(content) == 0:
        raise ValueError("it is empty")
    if (content[:8192] == 0).any():
        raise ValueError("it contains zero bytes, so it is not text")
    return piece
