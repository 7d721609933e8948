"""One exception for one situation: the user asked for something that cannot be. It carries a whole sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """What was wrong, where, and what would be right. The command line prints it and leaves with exit code 2."""


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """The known words most like `word`, as the end of a sentence: "; nearest: a, b" or nothing."""
    close = difflib.get_close_matches(word, list(known), n=count, cutoff=0.4)
    return f"; nearest: {', '.join(close)}" if close else ""
