"""Files that are there whole or not at all, whenever the power fails or the process is killed."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY = ".tmp-"
"""How the names of files begin that are not finished; who is killed while he writes leaves one behind."""


def write_file(path: Path, content: bytes) -> None:
    """Write a file and wait until it has reached the disk. It may be seen half-written: for use inside a temporary folder."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path` in one instant, durably."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        write_file(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` have reached the disk."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
