"""Options of commands: their types, and the refusal of those that would have no effect."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from stepsnet.errors import UsageError
from stepsnet.files import check_new_folder

LARGEST_SEED = 2**63 - 1
LARGEST_COUNT = 2**31 - 1


def seed(word: str) -> int:
    """The type of `--seed` for argparse."""
    if not word.isdecimal() or int(word) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 0 to 2^63 - 1")
    return int(word)


def count(least: int = 1, most: int = LARGEST_COUNT) -> Callable[[str], int]:
    """The type of a number of things for argparse."""

    def read(word: str) -> int:
        if not word.isdecimal() or not least <= int(word) <= most:
            raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from {least} to {most:,}")
        return int(word)

    return read


def refuse_repeated(words: Sequence[str]) -> None:
    """Refuse a key that is given twice among `key=value` words: the first value would have no effect."""
    keys = [word.partition("=")[0] for word in words]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{key} is given {keys.count(key)} times; give it once.")


def check_folder(out: Path) -> None:
    """Refuse a folder of results that is not new or empty, or cannot be written: before the work, not after it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not an empty folder; give another --out.")
    check_new_folder(out)


def is_given(args: argparse.Namespace, option: str) -> bool:
    """Whether an option was given: options that may be refused are None, False or an empty list by default."""
    value = getattr(args, option.replace("-", "_"))
    return value is not None and value is not False and value != []


def refuse(args: argparse.Namespace, *options: str, because: str) -> None:
    """Refuse the first of `options` that was given, as it would have no effect. `because` ends the sentence."""
    for option in options:
        if is_given(args, option):
            raise UsageError(f"--{option} {because}.")
