"""How far a reader walks through the code: the counts in docs/reference/maintainers.md.

    python -m tests.checks.walks            one line per module: the functions that ran in it

Two walks: `stepsnet train digits` up to the first batch, and `create_model("steps_swin_tiny")(x)` down to the deepest
matrix product. Counted with `sys.setprofile`: functions of stepsnet that run, except during an import and except the
constructors that `dataclass` generates. Modules in which only those run are listed apart.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from types import FrameType
from typing import Any

import torch

import stepsnet
from stepsnet.cli.main import main

MODEL = ("models", "blocks", "macro")
LOOP = ("train.trainer", "train.build", "train.callbacks")
GENERATED = "<string>"
"""The file of a constructor that `dataclass` generated."""


class Arrived(BaseException):
    """The walk is over. Not an `Exception`, so nothing on the way handles it."""


def module_of(frame: FrameType) -> str | None:
    """The module of stepsnet that a frame belongs to, as train.trainer."""
    package, _, module = str(frame.f_globals.get("__name__")).partition(".")
    return module if package == "stepsnet" and module else None


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    """`frame` and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def functions_until(walk: Callable[[], Any], last: str) -> dict[str, dict[str, None]]:
    """The functions of stepsnet that `walk` calls before the function `last` returns, by module."""
    found: dict[str, dict[str, None]] = {}
    start = sys._getframe()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return") or (module := module_of(frame)) is None:
            return
        generated = frame.f_code.co_filename == GENERATED
        name = f"{GENERATED} {type(frame.f_locals.get('self')).__name__}" if generated else frame.f_code.co_qualname
        if event == "return" and name == last:
            sys.setprofile(None)
            raise Arrived
        if event == "call" and name not in found.get(module, ()):
            inside = list(stack(frame))
            inside = inside[: inside.index(start)]
            if all(each.f_code.co_name != "<module>" for each in inside):
                found.setdefault(module, {})[name] = None

    sys.setprofile(look)
    try:
        walk()
    except Arrived:
        return found
    finally:
        sys.setprofile(None)
    raise AssertionError(f"{last} was not called")


def frames_to_matmul(model: torch.nn.Module, x: torch.Tensor) -> list[str]:
    """The frames of stepsnet from the model's `forward` to the deepest matrix product, both included."""
    deepest: list[str] = []
    products = ("linear", "matmul", "bmm", "scaled_dot_product_attention", "baddbmm", "conv2d")

    def look(frame: FrameType, event: str, builtin: Any) -> None:
        nonlocal deepest
        if event == "c_call" and getattr(builtin, "__name__", "") in products:
            own = [f"{m}: {each.f_code.co_qualname}" for each in stack(frame) if (m := module_of(each)) is not None]
            deepest = max(deepest, own[::-1], key=len)

    sys.setprofile(look)
    try:
        model(x)
    finally:
        sys.setprofile(None)
    return deepest


def print_walks() -> None:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        walk = functions_until(lambda: main(["train", "digits"]), "TrainingBatches.start")
    outside = {module: names for module, names in sorted(walk.items()) if module.partition(".")[0] not in MODEL}
    written = {module for module, names in outside.items() if not all(name.startswith(GENERATED) for name in names)}
    for module, names in outside.items():
        print(f"{module}: {', '.join(names)}")
    print(f"\n{len(written)} modules outside the model run before the first batch of `stepsnet train digits`.")
    print(f"Only generated constructors run in {', '.join(sorted(outside.keys() - written))}.")
    loop = [name for part in LOOP for name in outside.get(part, ()) if "<" not in name]
    imported = [name for name in sys.modules if name.startswith("stepsnet.")]
    print(f"{len(loop)} functions of {', '.join(LOOP)}; {len(imported)} modules of stepsnet are imported.\n")
    with torch.no_grad():
        frames = frames_to_matmul(stepsnet.create_model("steps_swin_tiny").eval(), torch.zeros(1, 3, 224, 224))
    print("\n".join(frames))
    print(f"\n`steps_swin_tiny` has {len(frames)} frames from its forward to the deepest matrix product.")


if __name__ == "__main__":
    print_walks()
