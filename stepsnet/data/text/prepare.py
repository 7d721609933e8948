"""`stepsnet prepare-text`: raw text of any size to token files, in bounded memory; an interrupted call continues.

There are two passes. The first reads the text: it finds damage, counts, hashes, and samples the text for BPE training.
The second encodes in parallel. preparation.json records the progress, always after the tokens are on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stepsnet.data.text.sources import PARTS, UNIT, Problems, Source, Unit, units
from stepsnet.data.text.tokens import (
    FORMAT_VERSION,
    ITEM_BYTES,
    MANIFEST,
    PROGRESS,
    TOKENIZER,
    Manifest,
    PreparedPart,
    read_manifest,
)  # fmt: skip
from stepsnet.data.text.vocabulary import SEPARATOR, BpeVocabulary, make_encoder
from stepsnet.data.text.windows import Tokens
from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.optional import require

SHORT_LIMIT = 1 << 16  # tokens that fit in two bytes
_SAVE_EVERY = 64  # units between two writes of preparation.json
_IN_FLIGHT = 4  # units per process that are queued or being encoded


class ProgressBar(Protocol):
    def advance(self, amount: float = 1, /) -> None: ...


class _NoBar:
    def advance(self, amount: float = 1, /) -> None:
        """Nothing."""


ShowProgress = Callable[[str, float | None], AbstractContextManager[ProgressBar]]
"""(description, total bytes if known) to a progress bar."""


def no_progress(description: str, total: float | None) -> AbstractContextManager[ProgressBar]:  # noqa: ARG001
    return nullcontext(_NoBar())


@dataclass(frozen=True, kw_only=True)
class Request:
    """Arguments of `prepare`. All but `workers` determine the content of the files."""

    out: Path
    sources: Sequence[Source]
    vocabulary: int = 50_000
    tokenizer: Path | None = None
    """Used instead of training one."""
    sample_mb: int = 32
    """Size of the training text sample for the BPE."""
    errors: str = "strict"
    workers: int = 1

    def identity(self) -> str:
        tokenizer = BpeVocabulary.load(self.tokenizer).identity if self.tokenizer else None
        facts = [FORMAT_VERSION, self.vocabulary, tokenizer, self.sample_mb, self.errors]
        return hashlib.sha256(
            json.dumps([*facts, *([s.part, s.identity()] for s in self.sources)]).encode()
        ).hexdigest()


def prepare(request: Request, progress: ShowProgress = no_progress) -> Manifest:
    """Prepare a text, or continue an interrupted preparation."""
    if request.sample_mb < 1 or request.workers < 1:
        raise UsageError("the sample must be at least 1 MB, and workers at least 1.")
    request.out.mkdir(parents=True, exist_ok=True)
    try:
        state = _Progress(request.out / PROGRESS, request.identity())
        if (request.out / MANIFEST).is_file():
            manifest = read_manifest(request.out)
            if manifest.request != state.identity:
                raise UsageError(f"{request.out} already contains another prepared text; give another --out.")
            return manifest
        _read(request, state, progress)
        return _encode(request, state, progress)
    except UsageError:
        with suppress(OSError):  # of a folder that is not empty
            request.out.rmdir()
        raise


class _Progress:
    """The progress of a preparation, kept in preparation.json."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        self.parts: dict[str, dict[str, Any]] = {}
        """Results of the first pass."""
        self.encoded: dict[str, tuple[int, int]] = {}
        """Units and tokens of each part that are on disk."""
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["identity"] != identity:
                raise UsageError(f"{path.parent} has an unfinished preparation of other text; give another --out.")
            self.parts, self.encoded = (
                kept["parts"],
                {part: (done[0], done[1]) for part, done in kept["encoded"].items()},
            )

    def save(self) -> None:
        replace_file(
            self.path,
            json.dumps({"identity": self.identity, "parts": self.parts, "encoded": self.encoded}, indent=2).encode(),
        )


def _read(request: Request, state: _Progress, progress: ShowProgress) -> None:
    """The first pass. It ends with writing the tokenizer, and is skipped if that exists."""
    target = request.out / TOKENIZER
    if state.parts and target.is_file():
        return
    sample = UnitSample(request.sample_mb * 1_000_000)
    with progress("reading", None) as bar:
        for part in PARTS:
            problems = Problems(request.errors)
            tally = _Tally()
            for unit in units([source for source in request.sources if source.part == part], problems):
                bar.advance(tally.add(unit))
                if part == "train":
                    sample.add(unit)
            if tally.documents:
                state.parts[part] = {**tally.facts(), "damage": problems.found}
    if not state.parts.get("train", {}).get("bytes"):
        raise UsageError("the training text is empty.")
    if request.tokenizer is not None:
        content = request.tokenizer.read_text(encoding="utf-8")
    else:
        with progress("training the tokenizer", None):
            content = train_bpe(sample.texts(), request.vocabulary)
    if BpeVocabulary(content, str(request.tokenizer or target)).separator is None:
        raise UsageError(f"{request.tokenizer} has no token <|endoftext|>, which must separate documents.")
    replace_file(target, content.encode())
    state.save()


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
            # A piece may start inside a word that is too long for one piece.
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


def _encode(request: Request, state: _Progress, progress: ShowProgress) -> Manifest:
    content = (request.out / TOKENIZER).read_text(encoding="utf-8")
    vocabulary = BpeVocabulary(content, TOKENIZER)
    dtype = "uint16" if len(vocabulary.pieces) <= SHORT_LIMIT else "uint32"
    total = sum(part["bytes"] for part in state.parts.values())
    with encoding(content, f"<u{ITEM_BYTES[dtype]}", request.workers) as encode, progress("encoding", total) as bar:
        for part in state.parts:
            sources = [source for source in request.sources if source.part == part]
            stream = units(sources, Problems("replace"))  # the first pass has reported all damage
            done, tokens = state.encoded.get(part, (0, 0))
            for unit in islice(stream, done):
                bar.advance(_size(unit))
            with (request.out / f"{part}.bin").open("r+b" if done else "wb") as file:
                file.truncate(tokens * ITEM_BYTES[dtype])  # later tokens are encoded again
                file.seek(0, os.SEEK_END)
                for unit, found in encode(stream):
                    file.write(found.tobytes())
                    done, tokens = done + 1, tokens + len(found)
                    bar.advance(_size(unit))
                    if done % _SAVE_EVERY == 0:
                        _save_progress(file, state, part, (done, tokens))
                _save_progress(file, state, part, (done, tokens))
    parts = {
        part: PreparedPart(file=f"{part}.bin", tokens=state.encoded[part][1], **facts)
        for part, facts in state.parts.items()
    }
    sources_of = {part: [source.name for source in request.sources if source.part == part] for part in parts}
    manifest = Manifest(
        request=state.identity, dtype=dtype, vocabulary=len(vocabulary.pieces), tokenizer_sha256=vocabulary.identity,
        sources=sources_of, parts=parts,
    )
    replace_file(request.out / MANIFEST, manifest.to_json().encode())
    state.path.unlink()
    return manifest


def _save_progress(file: Any, state: _Progress, part: str, done: tuple[int, int]) -> None:
    """Flush the tokens, then record them."""
    file.flush()
    os.fsync(file.fileno())
    state.encoded[part] = done
    state.save()


def _size(unit: Unit) -> int:
    return sum(len(text.encode()) for text, _ in unit)


class UnitSample:
    """Units sampled uniformly from a stream of unknown length (reservoir sampling), with a fixed seed."""

    def __init__(self, characters: int) -> None:
        self.capacity = max(1, characters // UNIT)
        self.units: list[Unit] = []
        self._seen = 0
        self._random = random.Random(0)  # noqa: S311  # reproducible, not for security

    def add(self, unit: Unit) -> None:
        self._seen += 1
        if len(self.units) < self.capacity:
            self.units.append(unit)
        elif (index := self._random.randrange(self._seen)) < self.capacity:
            self.units[index] = unit

    def texts(self) -> Iterator[str]:
        for unit in self.units:
            for piece in unit:
                yield piece.text


def train_bpe(texts: Iterable[str], vocabulary: int) -> str:
    """JSON of a byte-level BPE of at most `vocabulary` tokens, including 256 bytes and the separator."""
    if vocabulary < 257:
        raise UsageError(f"a vocabulary of {vocabulary} tokens is too small: 256 bytes and a separator are needed.")
    library = require("tokenizers", extra="text")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[SEPARATOR], initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2, show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=True))


class UnitEncoder:
    """The tokens of a unit as an array, with a separator after each document."""

    def __init__(self, tokenizer: str, dtype: str) -> None:
        self.encoder = make_encoder(tokenizer)
        self.separator: int = self.encoder.token_to_id(SEPARATOR)
        self.dtype = dtype

    def __call__(self, unit: Unit) -> Tokens:
        tokens: list[int] = []
        for piece, found in zip(unit, self.encoder.encode_batch_fast([piece.text for piece in unit]), strict=True):
            tokens += found.ids
            if piece.ends:
                tokens.append(self.separator)
        return np.asarray(tokens, dtype=self.dtype)


@contextmanager
def encoding(
    tokenizer: str, dtype: str, workers: int
) -> Iterator[Callable[[Iterable[Unit]], Iterator[tuple[Unit, Tokens]]]]:
    """A function that encodes units in order, in `workers` processes; with one worker, in this process."""
    if workers <= 1:
        encoder = UnitEncoder(tokenizer, dtype)
        yield lambda units: ((unit, encoder(unit)) for unit in units)
        return
    # Spawned, not forked: forking a process with threads (torch, the tokenizers library) may deadlock.
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (tokenizer, dtype)) as pool:
        try:
            yield lambda units: _in_order(pool, units, workers * _IN_FLIGHT)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _in_order(pool: ProcessPoolExecutor, units: Iterable[Unit], limit: int) -> Iterator[tuple[Unit, Tokens]]:
    waiting: deque[tuple[Unit, Future[Tokens]]] = deque()
    for unit in units:
        waiting.append((unit, pool.submit(_encode_unit, unit)))
        if len(waiting) >= limit:
            first, result = waiting.popleft()
            yield first, result.result()
    while waiting:
        first, result = waiting.popleft()
        yield first, result.result()


_worker: dict[str, Any] = {}  # state of a worker process


def _start_worker(tokenizer: str, dtype: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already use all cores
    _worker["encode"] = UnitEncoder(tokenizer, dtype)


def _exit_with_parent() -> None:
    """Exit when the parent was killed; otherwise the worker would wait forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode_unit(unit: Unit) -> Tokens:
    return _worker["encode"](unit)
