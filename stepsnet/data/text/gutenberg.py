"""English books of Project Gutenberg as `shared/data/text` has them: three packed files, split by book, and not free of overlap.

Of the 13-word sequences of valid 10.4 % also occur in train, nearly all of them in a collection and an anthology. The data's README
names where these lie; they are left out here, so that under 0.1 % remains.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepsnet.data.config import DataConfig
from stepsnet.data.text.windows import Text, TextStore, load_piece
from stepsnet.errors import UsageError

FILES = {"train": "gutenberg_train.txt.xz", "valid": "gutenberg_valid.txt.xz", "test": "gutenberg_test.txt.xz"}
OVERLAPS = {"valid": (0, 438856), "test": (146930, 436160)}
"""Characters of the unpacked text that train has too."""


def load_gutenberg(config: DataConfig) -> Text:
    """Bytes of train, and of valid (or, with data.valid=test, of test) without what train has too."""
    part = config.valid or "valid"
    if part not in OVERLAPS:
        raise UsageError(f"data.valid is {part!r}, but for Gutenberg it is 'valid' (or empty) or 'test'.")
    train, valid = load_piece(_path(config, "train")), _without_overlap(config, part)
    return Text(f"gutenberg ({part} without overlap)", TextStore([train]), TextStore([valid]))


def _without_overlap(config: DataConfig, part: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    piece = load_piece(_path(config, part))
    assert isinstance(piece, np.ndarray)
    characters = piece.tobytes().decode()
    start, stop = OVERLAPS[part]
    return np.frombuffer((characters[:start] + characters[stop:]).encode(), dtype=np.uint8)


def _path(config: DataConfig, part: str) -> Path:
    path = Path(config.root).expanduser() / FILES[part]
    if not config.root or not path.is_file():
        others = " and ".join(name for name in FILES.values() if name != path.name)
        raise UsageError(f"data.root is {config.root!r}, but should be the folder with {path.name}, which is not there, {others}.")
    return path
