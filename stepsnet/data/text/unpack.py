"""Files of text, packed or not, as decoded pieces: read a little at a time, and what is wrong with them named with its place."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from stepsnet.errors import UsageError
from stepsnet.optional import require

BLOCK = 1 << 16  # bytes read at once
_ZSTD_BLOCK = 1 << 12  # packed bytes at once, so that a block which unpacks to a hundred times its size is still small
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Reader(Protocol):
    """Anything whose bytes can be asked for piece by piece."""

    def read(self, size: int, /) -> bytes: ...


class Problems:
    """What to do with damage: under "strict" the first stops everything, under "replace" each is written down and passed over."""

    def __init__(self, errors: str) -> None:
        if errors not in ("strict", "replace"):
            raise UsageError(f"errors is {errors!r}, but can be 'strict' or 'replace'.")
        self.strict = errors == "strict"
        self.found: list[str] = []

    def meet(self, sentence: str, remedy: str) -> None:
        if self.strict:
            raise UsageError(f"{sentence}; --errors replace {remedy}.")
        self.found.append(sentence)


def decoded(path: Path, problems: Problems) -> Iterator[str]:
    """The text of one file. Bytes that are not UTF-8 are named by their offset in the unpacked text, other damage by that in the file."""
    decoder = _Utf8(path, problems)
    with path.open("rb") as file, _unpacking(file) as (kind, reader):
        while True:
            try:
                block = reader.read(BLOCK)
            except (OSError, EOFError, lzma.LZMAError, zlib.error, _DamageError) as reason:
                if kind == "plain":
                    raise UsageError(f"{path} cannot be read: {reason}.") from reason
                where = f"near byte {file.tell()} of the file, after {decoder.seen} bytes of text"
                problems.meet(f"{path.name}: damaged {kind} archive {where}: {reason}", "keeps the text before that")
                break
            if not block:
                break
            yield decoder.decode(block)
    yield decoder.decode(b"", last=True)
    decoder.report()


class _Utf8:
    """Decodes block by block and knows where it is."""

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
                    self._rest = data[begin:]  # the rest of this character comes with the next block
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
                self.problems.meet(self.first, "puts U+FFFD in its place")

    def report(self) -> None:
        if self.first is not None:
            more = f" (the first of {self.replaced} places)" if self.replaced > 1 else ""
            self.problems.meet(self.first + more, "puts U+FFFD in its place")


class _DamageError(Exception):
    """A zstd archive that ends too early or makes no sense."""


class _ZstdReader:
    """The library's own reader takes the end of a file for the end of the text, however much is missing; this one does not."""

    def __init__(self, file: BinaryIO) -> None:
        self._library: Any = require("zstandard", extra="text")
        self._file = file
        self._frame: Any = None

    def read(self, size: int) -> bytes:  # noqa: ARG002  # as much as one packed block gives
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
def _unpacking(file: BinaryIO) -> Iterator[tuple[str, Reader]]:
    """What kind of file it is by its first bytes, whatever its name, and a reader of its content."""
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
