"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepsnet.errors import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path of the same name in a temporary folder beside. What the body writes there moves to its place, `path` last, unless it fails."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for {path.name}")
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        for file in sorted(unfinished.parent.iterdir(), key=lambda file: file == unfinished):
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.replace(path.parent / file.name)
