"""Optional libraries, imported on first use. If one is missing, the error names the extra that installs it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
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
            f"{library} is not installed, and this needs it: pip install '.[{extra}]' in a clone of stepsnet."
        ) from missing


class TorchvisionFinder:
    """Makes a plain `import torchvision`, and with it `import timm`, work where its compiled operators do not load.

    `make setup` installs it for the whole `.venv` through a .pth file; `import stepsnet` does not. See torchvision.py.
    """

    @classmethod
    def install(cls) -> None:
        if not any(isinstance(finder, cls) for finder in sys.meta_path):
            sys.meta_path.insert(0, cls())

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None and spec.origin is not None:
            spec.loader = _TorchvisionLoader(spec.loader, Path(spec.origin).parent)
        return spec


class _TorchvisionLoader(Loader):
    def __init__(self, loader: Loader, folder: Path) -> None:
        self.loader, self.folder = loader, folder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from stepsnet.optional.torchvision import operators

        with operators(self.folder):
            self.loader.exec_module(module)
