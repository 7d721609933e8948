"""Makes `import torchvision` work on a torch that cannot load torchvision's compiled operators.

PyPI's torchvision wheel for Linux is a CUDA build. Beside a CPU build of torch its library `_C.so` does not load. torchvision
notices and shrugs, because most of it is plain Python; but then it describes the shapes of two operators, `nms` and `qnms`, which
only that library would have declared, and the import ends in "operator torchvision::nms does not exist". With it fall timm and
everything else that imports torchvision.

The cure is to declare these operators, without any computation behind them, before the import. After that the Python part of
torchvision is all there: `transforms.v2`, `models`, `datasets`, and timm. Where the compiled library does load, nothing is declared
and torchvision is left entirely to itself.

An operator is declared by its schema in `DECLARED`. Detection needs two of them to compute as well, `nms` and `roi_align`: they get
the kernels in plain PyTorch of `stepsnet.dense.kernels`. Without a kernel torchvision would fall back to a version of
`roi_align` that takes all memory there is, so it is told that these two are there; of any other operator it still says that it is not.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from pathlib import Path
from types import ModuleType

import torch

from stepsnet.dense import kernels
from stepsnet.optional import require

DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ("roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
     "int sampling_ratio, bool aligned) -> Tensor"),
)
USERS = {"torchvision.ops.boxes": ("_assert_has_ops",), "torchvision.ops.roi_align": ("_assert_has_ops", "_has_ops")}
"""Where torchvision asks whether its library is there before it calls `nms` or `roi_align`."""


def import_torchvision() -> ModuleType:
    """Import torchvision, whatever build of torch it stands beside; afterwards its submodules can be imported as usual."""
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    _forget_torchvision()  # somebody's failed attempt leaves submodules behind, which believe that there are no operators
    package = importlib.util.find_spec("torchvision")
    compiled = package is None or package.origin is None or _compiled_operators_load(Path(package.origin).parent)
    if not compiled:
        _declare_operators()
    try:
        library = require("torchvision", extra="vision")
    except BaseException:
        _forget_torchvision()
        raise
    if not compiled:
        _announce_plain_kernels()
    return library


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
    library.impl("nms", kernels.nms, "CompositeExplicitAutograd")
    library.impl("roi_align", kernels.roi_align, "CompositeImplicitAutograd")
    return library


def _announce_plain_kernels() -> None:
    """Let the two functions that have kernels now pass torchvision's question whether its compiled library is there."""
    for name, questions in USERS.items():
        for question in questions:
            if name in sys.modules:
                setattr(sys.modules[name], question, _yes)


def _yes() -> bool:
    return True


def _forget_torchvision() -> None:
    """Remove every trace of an unfinished import, so that the next attempt starts from the beginning."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
