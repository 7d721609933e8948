"""A byte-level BPE from a bounded sample of a text, and encoding with it in several processes at once, in order."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np

from stepsnet.data.text.sources import UNIT, Unit
from stepsnet.data.text.vocabulary import SEPARATOR, make_encoder
from stepsnet.data.text.windows import Tokens
from stepsnet.errors import UsageError
from stepsnet.optional import require

_IN_FLIGHT = 4  # units a process that are being encoded or wait for it


class Sample:
    """Units drawn evenly from a stream of unknown length (reservoir sampling), the same ones each time."""

    def __init__(self, characters: int) -> None:
        self.capacity = max(1, characters // UNIT)
        self.units: list[Unit] = []
        self._seen = 0
        self._random = random.Random(0)  # noqa: S311  # repeatable, not secret

    def add(self, unit: Unit) -> None:
        self._seen += 1
        if len(self.units) < self.capacity:
            self.units.append(unit)
        elif (place := self._random.randrange(self._seen)) < self.capacity:
            self.units[place] = unit

    def texts(self) -> Iterator[str]:
        for unit in self.units:
            for piece in unit:
                yield piece.text


def train_bpe(texts: Iterable[str], vocabulary: int) -> str:
    """A tokenizer of at most `vocabulary` tokens, all 256 bytes and the separator among them, as the JSON of the tokenizers library."""
    if vocabulary < 257:
        raise UsageError(f"a byte-level vocabulary has the 256 bytes and the separator at least; {vocabulary} tokens are too few.")
    library = require("tokenizers", extra="text")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[SEPARATOR],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=True))


class UnitEncoder:
    """The tokens of a unit as an array, documents separated."""

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
def encoding(tokenizer: str, dtype: str, workers: int) -> Iterator[Callable[[Iterable[Unit]], Iterator[tuple[Unit, Tokens]]]]:
    """A function that encodes units in their order, with `workers` processes; with one, in this process."""
    if workers <= 1:
        encoder = UnitEncoder(tokenizer, dtype)
        yield lambda units: ((unit, encoder(unit)) for unit in units)
        return
    # New processes instead of forked ones: a fork of a process that has threads (torch, the tokenizers library) may hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (tokenizer, dtype)) as pool:
        try:
            yield lambda units: _in_order(pool, units, workers * _IN_FLIGHT)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _in_order(pool: ProcessPoolExecutor, units: Iterable[Unit], limit: int) -> Iterator[tuple[Unit, Tokens]]:
    waiting: deque[tuple[Unit, Future[Tokens]]] = deque()
    for unit in units:
        waiting.append((unit, pool.submit(_encode, unit)))
        if len(waiting) >= limit:
            first, result = waiting.popleft()
            yield first, result.result()
    while waiting:
        first, result = waiting.popleft()
        yield first, result.result()


_worker: dict[str, Any] = {}  # what a worker process keeps from one unit to the next


def _begin(tokenizer: str, dtype: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that feeds this one
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core already
    _worker["encode"] = UnitEncoder(tokenizer, dtype)


def _end_with_the_parent() -> None:
    """A worker waits for work, and would do so for ever after whoever gives it was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode(unit: Unit) -> Tokens:
    return _worker["encode"](unit)
