"""A prepared text: a folder with the tokens of each part as one flat file, the tokenizer, and a manifest that says what is what."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepsnet.data.config import DataConfig
from stepsnet.data.text.vocabulary import BpeVocabulary
from stepsnet.data.text.windows import MappedTokens, Text, TextStore
from stepsnet.errors import UsageError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
ITEM_BYTES = {"uint16": 2, "uint32": 4}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of train, valid and test. Words are what white space separates; the hash is of the text, unpacked and decoded."""

    file: str
    tokens: int
    documents: int
    bytes: int
    words: int
    sha256: str
    damage: list[str] = field(default_factory=list)
    """What was replaced or left out on the way, under `--errors replace`."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a prepared folder holds."""

    format: int = FORMAT_VERSION
    request: str
    """Hash of what was asked for, so that asking again finds it done."""
    dtype: str
    """Of the token files, little-endian: uint16, or uint32 for more than 65,536 tokens."""
    vocabulary: int
    tokenizer_sha256: str
    sources: dict[str, list[str]]
    parts: dict[str, Part]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished preparation, or a sentence saying what the folder is instead."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UsageError(f"{folder} is not a prepared text (it has no {MANIFEST}); `stepsnet prepare-text` makes one.")
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = values["format"]
        if version > FORMAT_VERSION:
            raise UsageError(f"{path} was written by a newer stepsnet (format {version}, this one reads up to {FORMAT_VERSION}); upgrade.")
        return Manifest(**{**values, "parts": {name: Part(**part) for name, part in values["parts"].items()}})
    except (ValueError, KeyError, TypeError) as reason:
        if isinstance(reason, UsageError):
            raise
        raise UsageError(f"{path} is damaged ({reason!r}); prepare the text anew.") from reason


def load_tokens(config: DataConfig) -> Text:
    """Training tokens, and those of `data.valid` ("valid", or "test"); without a part for it, the last `valid_fraction` of train."""
    if not config.root:
        raise UsageError("data.root is missing: give the folder that `stepsnet prepare-text` wrote.")
    folder = Path(config.root).expanduser()
    manifest = read_manifest(folder)
    vocabulary = BpeVocabulary.load(folder / TOKENIZER)
    if vocabulary.identity != manifest.tokenizer_sha256 or len(vocabulary.pieces) != manifest.vocabulary:
        raise UsageError(f"{folder / TOKENIZER} is not the tokenizer that wrote the tokens beside it; prepare the text anew.")
    train, wanted = open_part(folder, manifest, "train"), config.valid or "valid"
    if wanted in manifest.parts or config.valid:
        return Text(str(folder), train, open_part(folder, manifest, wanted), vocabulary)
    cut = len(train) - round(len(train) * config.valid_fraction)
    return Text(str(folder), train.part(0, cut), train.part(cut, len(train)), vocabulary)


def open_part(folder: Path, manifest: Manifest, name: str) -> TextStore:
    """One part, left on disk until it is read; its size is checked against the manifest."""
    if name not in manifest.parts:
        raise UsageError(f"{folder} has no part {name!r}, only {', '.join(manifest.parts)}.")
    part = manifest.parts[name]
    path = folder / part.file
    expected = part.tokens * ITEM_BYTES[manifest.dtype]
    found = path.stat().st_size if path.is_file() else 0
    if found != expected or not part.tokens:
        raise UsageError(f"{path} has {found} bytes instead of the {expected} that its manifest says; prepare the text anew.")
    return TextStore([MappedTokens(path, f"<u{ITEM_BYTES[manifest.dtype]}")])
