"""Atomic file writes and JSON. A file appears complete or not at all, also after a kill or a power failure."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepsnet.errors import RunFailed, UsageError

TEMPORARY = ".tmp-"
"""Prefix of unfinished files and folders. A killed process may leave one behind."""


def write_file(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk. Not atomic: for use inside a temporary folder."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Create or replace `path` atomically and durably."""
    temporary = _temporary(path)
    try:
        write_file(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Raise the error of `replace_file` now, before the work whose result it will write."""
    temporary = _temporary(path)
    temporary.touch()
    temporary.unlink()


def check_new_folder(folder: Path) -> None:
    """Raise now the error of making `folder` and the folders above it that are missing."""
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    check_writable(above / folder.name)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path of the same name in a temporary folder, for writers that take a path and may write several files.

    If the body succeeds, all files written there move next to `path`, and `path` itself last. If it fails, none does.
    """
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for {path.name}")
    with tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}{path.name}-", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        for file in sorted(unfinished.parent.iterdir(), key=lambda file: file == unfinished):
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.replace(path.parent / file.name)


def sync_folder(folder: Path) -> None:
    """Wait until the file names in `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Delete a folder. It is renamed first, so a kill never leaves a half-deleted folder under its own name."""
    temporary = _temporary(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders of killed processes."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


@contextmanager
def explain_full_disk(path: Path, size: int, what_is_left: str) -> Iterator[None]:
    """Turn "no space left" while writing `size` bytes to `path` into a `RunFailed` that ends with `what_is_left`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(path.parent).free
        raise RunFailed(f"The disk is full: {path} needs {size:,} bytes, {free:,} are free. {what_is_left}") from error


def finite(value: Any) -> Any:
    """A copy of nested dicts, lists and numbers, with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file does not exist."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}).") from error
