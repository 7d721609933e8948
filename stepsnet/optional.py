"""Libraries that stepsnet can live without: imported on first use, and a missing one is answered with the extra that brings it."""

from __future__ import annotations

import importlib
from types import ModuleType

from stepsnet.errors import UsageError


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module` (say "sklearn.datasets") or raise a `UsageError` naming the extra of stepsnet to install.

    Only the absence of the library itself is the user's to mend. Whatever else goes wrong while it is imported, a broken
    installation for example, is raised as it is.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != library:
            raise
        raise UsageError(f"{library} is not installed, and this needs it: pip install 'stepsnet[{extra}]'.") from missing
