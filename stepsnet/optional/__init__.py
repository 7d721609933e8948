"""Optional libraries, imported on first use. If one is missing, the error names the extra of stepsnet that installs
it."""

from __future__ import annotations

import importlib
from types import ModuleType

from stepsnet.errors import UsageError


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module` (for example "sklearn.datasets"); a `UsageError` names the extra if its library is not installed.

    Other import errors, such as those of a broken installation, are raised unchanged.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != library:
            raise
        raise UsageError(
            f"{library} is not installed, and this needs it: pip install 'stepsnet[{extra}]'."
        ) from missing
