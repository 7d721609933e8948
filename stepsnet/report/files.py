"""Files that are there whole or not at all, also when the process is killed while it writes."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path` in one instant, once it has reached the disk."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")  # of such names run folders are cleaned
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
