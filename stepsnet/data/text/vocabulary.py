"""Vocabularies: every token stands for bytes, so that bits per byte and perplexity per word can be computed for any of
them.

Both vocabularies are byte-level: each byte has a token, so any text can be encoded, and decoding restores the same
bytes.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepsnet.errors import UsageError
from stepsnet.optional import require

SEPARATOR = "<|endoftext|>"
"""The token after each document of a prepared text."""


class Vocabulary(ABC):
    """Text to tokens and back."""

    unit: str
    """Name of the tokens: "bytes" or "tokens"."""
    pieces: tuple[bytes, ...]
    """The bytes of each token; empty for special tokens."""
    separator: int | None = None
    """The token that ends a document, if any."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Equal for equal vocabularies."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""

    @property
    def start(self) -> int:
        """The first token of an empty prompt: the separator, or else a newline."""
        return self.pieces.index(b"\n") if self.separator is None else self.separator

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens. They may end inside a character."""
        return b"".join(self.pieces[token] for token in tokens)

    def check_fits(self, vocab_size: int, where: str) -> None:
        """Refuse a model with another number of tokens."""
        if vocab_size != len(self.pieces):
            sizes = f"{where} has {vocab_size} tokens, but the tokenizer {len(self.pieces)}"
            raise UsageError(f"{sizes}; use the tokenizer it was trained with.")


class ByteVocabulary(Vocabulary):
    """256 tokens, one per byte."""

    unit = "bytes"
    pieces = tuple(bytes([value]) for value in range(256))

    @property
    def identity(self) -> str:
        return "bytes"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class BpeVocabulary(Vocabulary):
    """A byte-level BPE in the format of the tokenizers library, which is needed only for encoding."""

    unit = "tokens"

    def __init__(self, content: str, where: str) -> None:
        self.content = content
        try:
            self.pieces, self.separator = _read_pieces(json.loads(content))
        except (ValueError, KeyError, TypeError) as reason:
            known = "such as GPT-2's or one of `stepsnet prepare-text`"
            raise UsageError(f"{where} is not a byte-level BPE, {known}.") from reason
        self._encoder: Any = None

    @classmethod
    def load(cls, path: Path) -> BpeVocabulary:
        if not path.is_file():
            raise UsageError(f"there is no tokenizer {path}; `stepsnet prepare-text` writes one.")
        return cls(path.read_text(encoding="utf-8", errors="replace"), str(path))

    @property
    def identity(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        if self._encoder is None:
            self._encoder = make_encoder(self.content)
        return list(self._encoder.encode(text).ids)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoder": None}  # created again when needed


def make_encoder(content: str) -> Any:
    """The library's tokenizer. "<|endoftext|>" in a text is encoded as characters, not as the special token."""
    encoder = require("tokenizers", extra="text").Tokenizer.from_str(content)
    encoder.encode_special_tokens = True
    return encoder


def byte_characters() -> dict[str, int]:
    """The printable character that byte-level BPEs (GPT-2 and later) use for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + index): value for index, value in enumerate(others)}


def _read_pieces(tokenizer: dict[str, Any]) -> tuple[tuple[bytes, ...], int | None]:
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    special = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", []) if entry.get("special")}
    by_character = byte_characters()
    pieces: dict[int, bytes] = {}
    for token, number in {**ids, **special}.items():
        pieces[number] = b"" if token in special else bytes(by_character[character] for character in token)
    if sorted(pieces) != list(range(len(pieces))):
        raise ValueError("its token numbers have gaps")
    if not {bytes([value]) for value in range(256)} <= set(pieces.values()):
        raise ValueError("some bytes have no token")
    return tuple(pieces[number] for number in range(len(pieces))), special.get(SEPARATOR)
