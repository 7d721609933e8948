"""The two exceptions that the command line prints as one sentence, without a traceback; and suggestions for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """The request is invalid: what is wrong, the value, and what is allowed. The command line exits with code 2."""


class RunFailed(RuntimeError):  # noqa: N818  (it names an event, as KeyboardInterrupt does)
    """A valid run cannot continue: what happened, where, what can be resumed. The command line exits with code 1."""


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """The known words most similar to `word`, as the end of a sentence: "; nearest: a, b", or an empty string.

    Similar spellings come first, then words that contain it: "clip" finds "optim.clip".
    """
    words = list(known)
    close = difflib.get_close_matches(word, words, n=count, cutoff=0.6)
    containing = [other for other in words if len(word) > 2 and word in other]
    found = list(dict.fromkeys([*close, *containing]))[:count]
    return f"; nearest: {', '.join(found)}" if found else ""
