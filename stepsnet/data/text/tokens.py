"""A prepared text: a folder with one flat token file per part, the tokenizer, and a manifest."""

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
PROGRESS = "preparation.json"
ITEM_BYTES = {"uint16": 2, "uint32": 4}


@dataclass(frozen=True, kw_only=True)
class PreparedPart:
    """One of train, valid and test. White space separates words; the hash is of the decoded text."""

    file: str
    tokens: int
    documents: int
    bytes: int
    words: int
    sha256: str
    damage: list[str] = field(default_factory=list)
    """What was replaced or skipped with `--errors replace`."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a prepared folder."""

    format: int = FORMAT_VERSION
    request: str
    """Hash of the arguments, to recognise a repeated call."""
    dtype: str
    """Type of the token files, little-endian: uint16, or uint32 for more than 65,536 tokens."""
    vocabulary: int
    tokenizer_sha256: str
    sources: dict[str, list[str]]
    parts: dict[str, PreparedPart]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder; a UsageError if it is missing, damaged or too new."""
    path = folder / MANIFEST
    if (folder / PROGRESS).is_file() and not path.is_file():
        raise UsageError(f"{folder} is an unfinished preparation; the same `stepsnet prepare-text` continues it.")
    if not path.is_file():
        raise UsageError(f"{folder} is not a prepared text: it has no {MANIFEST}. `stepsnet prepare-text` creates one.")
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = values["format"]
        if version > FORMAT_VERSION:
            raise UsageError(
                f"{path} is from a newer stepsnet: format {version}, but {FORMAT_VERSION} is the last known."
            )
        return Manifest(**{**values, "parts": {name: PreparedPart(**part) for name, part in values["parts"].items()}})
    except (ValueError, KeyError, TypeError) as reason:
        if isinstance(reason, UsageError):
            raise
        raise UsageError(f"{path} is damaged ({reason!r}); prepare the text again.") from reason


def is_prepared(folder: Path) -> bool:
    """Whether `prepare-text` wrote this folder, finished or not. Others may have their own manifest.json."""
    if (folder / PROGRESS).is_file() and (folder / TOKENIZER).is_file():
        return True
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"format", "parts", "tokenizer_sha256"} <= manifest.keys()


def load_tokens(config: DataConfig) -> Text:
    """Training tokens, and validation tokens: the part `data.valid` ("valid" or "test"), or else the end of train."""
    if not config.root:
        raise UsageError("data.root is missing: give the folder that `stepsnet prepare-text` wrote.")
    folder = Path(config.root).expanduser()
    manifest = read_manifest(folder)
    vocabulary = BpeVocabulary.load(folder / TOKENIZER)
    if vocabulary.identity != manifest.tokenizer_sha256 or len(vocabulary.pieces) != manifest.vocabulary:
        raise UsageError(f"{folder / TOKENIZER} is not the tokenizer of the tokens there; prepare the text again.")
    train = open_part(folder, manifest, "train")
    if (part := valid_part(config, manifest)) is not None:
        return Text(str(folder), train, open_part(folder, manifest, part), vocabulary)
    cut = len(train) - round(len(train) * config.valid_fraction)
    return Text(str(folder), train.part(0, cut), train.part(cut, len(train)), vocabulary)


def valid_part(config: DataConfig, manifest: Manifest) -> str | None:
    """The part for validation; None if it is split from train."""
    if config.valid == "train":
        raise UsageError("data.valid is 'train', but must be another part, 'valid' or 'test'.")
    return config.valid or ("valid" if "valid" in manifest.parts else None)


def open_part(folder: Path, manifest: Manifest, name: str) -> TextStore:
    """One part, memory-mapped; its size is checked against the manifest."""
    if name not in manifest.parts:
        raise UsageError(f"{folder} has no part {name!r}, only {', '.join(manifest.parts)}.")
    part = manifest.parts[name]
    path = folder / part.file
    expected = part.tokens * ITEM_BYTES[manifest.dtype]
    found = path.stat().st_size if path.is_file() else 0
    if found != expected or not part.tokens:
        raise UsageError(f"{path} has {found} bytes instead of the {expected} in the manifest; prepare the text again.")
    return TextStore([MappedTokens(path, f"<u{ITEM_BYTES[manifest.dtype]}")])
