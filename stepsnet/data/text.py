"""Text as bytes: any files, plain ones read through the operating system's page cache, cut into windows of seq_len + 1."""

from __future__ import annotations

import gzip
import logging
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepsnet.data.config import DataConfig
from stepsnet.data.rng import mix
from stepsnet.errors import UsageError

log = logging.getLogger("stepsnet.data")

IGNORED = -100  # the target of a position that does not count, as torch's cross entropy has it
MAPPED_FROM = 1 << 22  # bytes; smaller files are simply read
Bytes = NDArray[np.uint8]


class MappedBytes:
    """A large file whose bytes stay on disk until they are used; sent to another process as its name, not as its content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Bytes = np.memmap(path, dtype=np.uint8, mode="r")

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedBytes, (self.path,)


class TextStore:
    """Pieces of text behind each other, or a part [start, stop) of them, addressed by byte."""

    def __init__(self, pieces: Sequence[Bytes | MappedBytes], start: int = 0, stop: int | None = None) -> None:
        self.pieces = list(pieces)
        sizes = [len(piece.content if isinstance(piece, MappedBytes) else piece) for piece in self.pieces]
        self.ends: NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
        total = int(self.ends[-1]) if sizes else 0
        self.start, self.stop = start, total if stop is None else stop

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> TextStore:
        return TextStore(self.pieces, self.start + start, self.start + stop)

    def read(self, start: int, stop: int) -> Bytes:
        """Bytes [start, stop), which may run over several pieces."""
        start, stop = start + self.start, min(stop + self.start, self.stop)
        found: list[Bytes] = []
        number = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            piece = self.pieces[number]
            content = piece.content if isinstance(piece, MappedBytes) else piece
            end = int(self.ends[number])
            inside = start - (end - len(content))
            found.append(content[inside : inside + min(stop, end) - start])
            start, number = min(stop, end), number + 1
        return found[0] if len(found) == 1 else np.concatenate(found)


class TextSample(NamedTuple):
    sample_id: int
    window: NDArray[np.int64]
    """seq_len + 1 tokens; the last window of a validation text ends with IGNORED where the text has ended."""


@dataclass(frozen=True)
class TextWindows:
    """Windows by (epoch, index). Training shifts all windows of an epoch by an offset of (seed, epoch); validation covers every byte."""

    store: TextStore
    seq_len: int
    seed: int | None
    """None: validation."""

    def __len__(self) -> int:
        # Every token but the first is a target once. Training leaves room for the shift instead of reaching the end.
        targets = len(self.store) - 1
        return -(-targets // self.seq_len) if self.seed is None else (targets - self.seq_len + 1) // self.seq_len

    def __getitem__(self, key: tuple[int, int]) -> TextSample:
        epoch, index = key
        shift = 0 if self.seed is None else mix(self.seed, epoch) % self.seq_len
        start = index * self.seq_len + shift
        content = self.store.read(start, start + self.seq_len + 1)
        window: NDArray[np.int64] = np.full(self.seq_len + 1, IGNORED, dtype=np.int64)
        window[: len(content)] = content
        return TextSample(index, window)

    @property
    def skipped(self) -> int:
        """Unreadable files are found before the first step, so no sample is ever missing."""
        return 0


@dataclass(frozen=True)
class Text:
    """A whole data set: bytes for training and bytes for validation."""

    name: str
    train: TextStore
    valid: TextStore

    def check(self, seq_len: int) -> None:
        """Find a text that is too short before the first step."""
        if len(self.train) < 2 * seq_len:
            raise UsageError(f"{self.name}: {len(self.train)} bytes of training text are too short for data.seq_len={seq_len}.")
        if len(self.valid) < 2:
            raise UsageError(f"{self.name}: there is no validation text; data.valid or a larger data.valid_fraction gives some.")


def load_text_files(config: DataConfig) -> Text:
    """Text from `root`; validation from `valid`, or the last `valid_fraction` of root's text. Each is a file or a folder."""
    if not config.root:
        raise UsageError("data.root is missing: give a text file or a folder of text files.")
    whole = TextStore(_read_all(config.root, config))
    if config.valid:
        return Text(config.root, whole, TextStore(_read_all(config.valid, config)))
    cut = len(whole) - round(len(whole) * config.valid_fraction)
    return Text(config.root, whole.part(0, cut), whole.part(cut, len(whole)))


def _read_all(place: str, config: DataConfig) -> list[Bytes | MappedBytes]:
    path = Path(place).expanduser()
    if not path.exists():
        raise UsageError(f"{place} does not exist; it should be a text file or a folder of text files.")
    if path.is_file():
        files = [path]
    else:
        relative = sorted(file.relative_to(path) for file in path.glob(config.pattern) if file.is_file())
        files = [path / name for name in relative if not any(part.startswith(".") for part in name.parts)]
    pieces: list[Bytes | MappedBytes] = []
    skipped = 0
    for file in files:
        try:
            piece = _read(file)
        except (OSError, EOFError, lzma.LZMAError, ValueError) as reason:
            if config.strict or path.is_file():
                raise UsageError(f"{file} cannot be read as text: {reason}.") from reason
            skipped += 1
            log.warning("skipped an unreadable file: %s: %s", file, reason)
            continue
        pieces.append(piece)
    if not pieces:
        raise UsageError(f"{place} has no readable text files ({len(files)} tried, {skipped} unreadable).")
    return pieces


def _read(path: Path) -> Bytes | MappedBytes:
    """The bytes of one file, unpacked; ValueError if it is not text."""
    unpack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
    piece: Bytes | MappedBytes
    if path.suffix in unpack:
        piece = np.frombuffer(unpack[path.suffix](path.read_bytes()), dtype=np.uint8)
    elif path.stat().st_size >= MAPPED_FROM:
        piece = MappedBytes(path)
    else:
        piece = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    content = piece.content if isinstance(piece, MappedBytes) else piece
    if len(content) == 0:
        raise ValueError("it is empty")
    if (content[:8192] == 0).any():
        raise ValueError("it contains zero bytes, as text does not")
    return piece
