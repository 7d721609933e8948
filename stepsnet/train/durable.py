"""What runs need besides whole files: folders that vanish at once, leftovers cleared away, a full disk put into words."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepsnet.files import TEMPORARY
from stepsnet.train.errors import RunFailed


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
