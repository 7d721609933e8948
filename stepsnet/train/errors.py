"""A run that cannot go on, through no mistake in its configuration."""

from __future__ import annotations


class RunFailed(RuntimeError):  # noqa: N818  (it is what happened)
    """One sentence: what happened, where, and what is left to go on from. The command line prints it and leaves with exit code 1."""
