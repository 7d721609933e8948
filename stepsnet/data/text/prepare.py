"""`stepsnet prepare-text`: raw text of any size to token files, in bounded memory, and from where it stopped when it was interrupted.

Two passes over the text. The first reads: it finds damage, counts, hashes and draws the sample that the BPE is trained on. The second
encodes in parallel. What is finished is written down in preparation.json, always after the tokens it speaks of are on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from stepsnet.data.text.bpe import Sample, encoding, train_bpe
from stepsnet.data.text.sources import PARTS, Source, Unit, units
from stepsnet.data.text.tokens import FORMAT_VERSION, ITEM_BYTES, MANIFEST, TOKENIZER, Manifest, Part, read_manifest
from stepsnet.data.text.unpack import Problems
from stepsnet.data.text.vocabulary import BpeVocabulary
from stepsnet.errors import UsageError
from stepsnet.files import replace_file

PROGRESS = "preparation.json"
SHORT_LIMIT = 1 << 16  # tokens that two bytes can tell apart
_SAVE_EVERY = 64  # units between two notes of how far the encoding is


class Bar(Protocol):
    def advance(self, amount: float = 1, /) -> None: ...


class _NoBar:
    def advance(self, amount: float = 1, /) -> None:
        """Nobody is watching."""


Watch = Callable[[str, float | None], AbstractContextManager[Bar]]
"""(what is being done, how many bytes in all if that is known) to a progress bar."""


def unwatched(description: str, total: float | None) -> AbstractContextManager[Bar]:  # noqa: ARG001
    return nullcontext(_NoBar())


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is wanted. Everything but `workers` decides what the files contain."""

    out: Path
    sources: Sequence[Source]
    vocabulary: int = 50_000
    tokenizer: Path | None = None
    """One to use instead of training one."""
    sample_mb: int = 32
    """How much of the training text the BPE is trained on."""
    errors: str = "strict"
    workers: int = 1

    def identity(self) -> str:
        tokenizer = BpeVocabulary.load(self.tokenizer).identity if self.tokenizer else None
        facts = [FORMAT_VERSION, self.vocabulary, tokenizer, self.sample_mb, self.errors]
        return hashlib.sha256(json.dumps([*facts, *([s.part, s.identity()] for s in self.sources)]).encode()).hexdigest()


def prepare(request: Request, watch: Watch = unwatched) -> Manifest:
    """Do what is wanted, or what an earlier attempt has left of it."""
    if request.sample_mb < 1 or request.workers < 1:
        raise UsageError("the sample is at least 1 MB and there is at least one process.")
    request.out.mkdir(parents=True, exist_ok=True)
    notes = _Notes(request.out / PROGRESS, request.identity())
    if (request.out / MANIFEST).is_file():
        manifest = read_manifest(request.out)
        if manifest.request != notes.identity:
            raise UsageError(f"{request.out} already holds another prepared text; give another --out.")
        return manifest
    _read(request, notes, watch)
    return _encode(request, notes, watch)


class _Notes:
    """How far a preparation is."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        self.parts: dict[str, dict[str, Any]] = {}
        """What the first pass found."""
        self.encoded: dict[str, tuple[int, int]] = {}
        """Units and tokens of each part that are on the disk."""
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["identity"] != identity:
                raise UsageError(f"{path.parent} holds an unfinished preparation of other text or options; give another --out.")
            self.parts, self.encoded = kept["parts"], {part: (done[0], done[1]) for part, done in kept["encoded"].items()}

    def save(self) -> None:
        replace_file(self.path, json.dumps({"identity": self.identity, "parts": self.parts, "encoded": self.encoded}, indent=2).encode())


def _read(request: Request, notes: _Notes, watch: Watch) -> None:
    """The first pass, which ends with a tokenizer; if that is there, it has been done."""
    target = request.out / TOKENIZER
    if notes.parts and target.is_file():
        return
    sample = Sample(request.sample_mb * 1_000_000)
    with watch("reading", None) as bar:
        for part in PARTS:
            problems = Problems(request.errors)
            tally = _Tally()
            for unit in units([source for source in request.sources if source.part == part], problems):
                bar.advance(tally.add(unit))
                if part == "train":
                    sample.add(unit)
            if tally.documents:
                notes.parts[part] = {**tally.facts(), "damage": problems.found}
    if not notes.parts.get("train", {}).get("bytes"):
        raise UsageError("the training text is empty.")
    if request.tokenizer is not None:
        content = request.tokenizer.read_text(encoding="utf-8")
    else:
        with watch("training the tokenizer", None):
            content = train_bpe(sample.texts(), request.vocabulary)
    if BpeVocabulary(content, str(request.tokenizer or target)).separator is None:
        raise UsageError(f"{request.tokenizer} has no token <|endoftext|> to separate documents with.")
    replace_file(target, content.encode())
    notes.save()


class _Tally:
    """Counts and hash of a part."""

    def __init__(self) -> None:
        self.documents = self.bytes = self.words = 0
        self._hash = hashlib.sha256()
        self._inside_word = False

    def add(self, unit: Unit) -> int:
        size = 0
        for text, ends in unit:
            content = text.encode()
            size += len(content)
            self._hash.update(content)
            # A piece may begin in the middle of a word that is too long for one piece.
            self.words += len(content.split()) - (self._inside_word and bool(content) and not content[:1].isspace())
            if content:
                self._inside_word = not content[-1:].isspace()
            if ends:
                self.documents += 1
                self._inside_word = False
        self.bytes += size
        return size

    def facts(self) -> dict[str, Any]:
        return {"documents": self.documents, "bytes": self.bytes, "words": self.words, "sha256": self._hash.hexdigest()}


def _encode(request: Request, notes: _Notes, watch: Watch) -> Manifest:
    content = (request.out / TOKENIZER).read_text(encoding="utf-8")
    vocabulary = BpeVocabulary(content, TOKENIZER)
    dtype = "uint16" if len(vocabulary.pieces) <= SHORT_LIMIT else "uint32"
    total = sum(part["bytes"] for part in notes.parts.values())
    with encoding(content, f"<u{ITEM_BYTES[dtype]}", request.workers) as encode, watch("encoding", total) as bar:
        for part in notes.parts:
            sources = [source for source in request.sources if source.part == part]
            stream = units(sources, Problems("replace"))  # the first pass has met whatever is to be met
            done, tokens = notes.encoded.get(part, (0, 0))
            for unit in islice(stream, done):
                bar.advance(_size(unit))
            with (request.out / f"{part}.bin").open("r+b" if done else "wb") as file:
                file.truncate(tokens * ITEM_BYTES[dtype])  # what came after the last note is encoded again
                file.seek(0, os.SEEK_END)
                for unit, found in encode(stream):
                    file.write(found.tobytes())
                    done, tokens = done + 1, tokens + len(found)
                    bar.advance(_size(unit))
                    if done % _SAVE_EVERY == 0:
                        _settle(file, notes, part, (done, tokens))
                _settle(file, notes, part, (done, tokens))
    parts = {part: Part(file=f"{part}.bin", tokens=notes.encoded[part][1], **facts) for part, facts in notes.parts.items()}
    sources_of = {part: [source.name for source in request.sources if source.part == part] for part in parts}
    manifest = Manifest(
        request=notes.identity, dtype=dtype, vocabulary=len(vocabulary.pieces), tokenizer_sha256=vocabulary.identity,
        sources=sources_of, parts=parts,
    )
    replace_file(request.out / MANIFEST, manifest.to_json().encode())
    notes.path.unlink()
    return manifest


def _settle(file: Any, notes: _Notes, part: str, done: tuple[int, int]) -> None:
    """Tokens first, then the note that they are there."""
    file.flush()
    os.fsync(file.fileno())
    notes.encoded[part] = done
    notes.save()


def _size(unit: Unit) -> int:
    return sum(len(text.encode()) for text, _ in unit)
