"""Makes `import torchvision` work on a torch that cannot load torchvision's compiled operators.

PyPI's torchvision wheel for Linux is a CUDA build. Beside a CPU build of torch its library `_C.so` does not load. torchvision
notices and shrugs, because most of it is plain Python; but then it describes the shapes of two operators, `nms` and `qnms`, which
only that library would have declared, and the import ends in "operator torchvision::nms does not exist". With it fall timm and
everything else that imports torchvision.

The cure is to declare these operators, without any computation behind them, before the import. After that the Python part of
torchvision is all there: `transforms.v2`, `models`, `datasets`, and timm. Where the compiled library does load, nothing is declared
and torchvision is left entirely to itself.

An operator is declared by its schema in `DECLARED`. Calling a declared operator fails with PyTorch's own message until a kernel is
registered for it on the library that `_declare_operators` returns: that is the place for kernels in plain PyTorch.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from pathlib import Path
from types import ModuleType

import torch

from stepsnet.integrations.optional import require

DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def import_torchvision() -> ModuleType:
    """Import torchvision, whatever build of torch it stands beside; afterwards its submodules can be imported as usual."""
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    _forget_torchvision()  # somebody's failed attempt leaves submodules behind, which believe that there are no operators
    package = importlib.util.find_spec("torchvision")
    if package is not None and package.origin is not None and not _compiled_operators_load(Path(package.origin).parent):
        _declare_operators()
    try:
        return require("torchvision", extra="vision")
    except BaseException:
        _forget_torchvision()
        raise


def _compiled_operators_load(folder: Path) -> bool:
    """Whether torch can load the library `_C` in torchvision's folder, found and loaded as torchvision itself is about to do."""
    library = FileFinder(str(folder), (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec("_C")
    if library is None or library.origin is None:
        return False
    try:
        torch.ops.load_library(library.origin)
    except OSError:
        return False
    return True


@functools.cache  # operators can be declared once in a process, and they live as long as the library object does
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in DECLARED:
        library.define(schema)
    return library


def _forget_torchvision() -> None:
    """Remove every trace of an unfinished import, so that the next attempt starts from the beginning."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
