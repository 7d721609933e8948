"""Files that are there whole or not at all, whenever the power fails or the process is killed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepsnet.training.errors import RunFailed

TEMPORARY = ".tmp-"


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
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Delete a folder that must never be seen half-deleted under its own name."""
    doomed = folder.with_name(f"{TEMPORARY}{folder.name}-{os.getpid()}")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Delete what an earlier process that was killed left unfinished."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


@contextmanager
def full_disk_in_words(path: Path, size: int, consolation: str) -> Iterator[None]:
    """Turn a full disk, met while writing the `size` bytes of `path`, into a sentence; `consolation` says what is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(path.parent).free
        raise RunFailed(f"The disk is full: {path} needs {size:,} bytes, {free:,} are free. {consolation}") from error
