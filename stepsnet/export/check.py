"""Checked export: the file is run and compared with the model before it appears at its path."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepsnet.errors import UsageError, nearest
from stepsnet.export.formats import onnx_session, openvino_callable, write_onnx, write_openvino
from stepsnet.export.program import Traced, load_torch_export, trace, write_torch_export
from stepsnet.export.shapes import FreeAxis, example_input
from stepsnet.files import whole_file
from stepsnet.models import Model

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Format:
    """One kind of file: its suffix, its writer, and a function that loads it for running."""

    suffix: str
    write: Callable[[Traced, Path], Path]
    load: Callable[[Path], Callable[[Tensor], Tensor]]


FORMATS = {
    "onnx": Format(".onnx", write_onnx, onnx_session),
    "torch-export": Format(".pt2", write_torch_export, load_torch_export),
    "openvino": Format(".xml", write_openvino, openvino_callable),
}


@dataclass(frozen=True)
class Difference:
    """The largest difference between file and model for one input shape, and the model's largest output."""

    shape: tuple[int, ...]
    largest: float
    scale: float

    @property
    def holds(self) -> bool:
        """Whether the difference is within 1e-4, relative to the largest output if that is above 1. False for NaN."""
        return self.largest <= TOLERANCE * max(1.0, self.scale)

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "difference": self.largest, "largest_output": self.scale}


@dataclass(frozen=True)
class Exported:
    """A file that has been checked."""

    path: Path
    axes: tuple[FreeAxis, ...]
    differences: tuple[Difference, ...]
    facts: dict[str, str]


def export_model(
    model: Model, path: str | Path, *, form: str = "onnx", any_size: bool = False, against: Model | None = None
) -> Exported:
    """Write a model to a file, run the file, and compare its outputs with the model's.

    The file takes any batch, with `any_size` also any size in its range. `against` is the model to compare with, if not
    `model` itself (for example before batch norms were folded). `path` appears only if the outputs agree to 1e-4.
    """
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}{nearest(form, FORMATS)}; formats: {', '.join(FORMATS)}")
    chosen, path = FORMATS[form], Path(path)
    if path.suffix != chosen.suffix:
        raise UsageError(f"a file of format {form} ends in {chosen.suffix}, but {path.name} does not")
    with whole_file(path) as unfinished:
        traced = trace(model, any_size=any_size)
        chosen.write(traced, unfinished)
        differences = compare(
            against or model, chosen.load(unfinished), check_shapes((2, *model.input_size), traced.axes)
        )
        for difference in differences:
            if not difference.holds:
                raise UsageError(
                    f"the {form} file does not compute what the model computes: for an input of {difference.shape} the "
                    f"outputs differ by {difference.largest:.2g}, more than {TOLERANCE:g}; the file was removed"
                )
    return Exported(path, traced.axes, tuple(differences), traced.facts)


def check_shapes(own: tuple[int, ...], axes: tuple[FreeAxis, ...]) -> list[tuple[int, ...]]:
    """Shapes to check: the model's own, batches of one and three, and free axes at another and the smallest length."""
    shapes = [own]
    if any(axis.number == 0 for axis in axes):
        shapes += [(1, *own[1:]), (3, *own[1:])]
    sizes = [axis for axis in axes if axis.number]
    for axis in sizes:
        shapes.append(_changed(own, {axis.number: axis.another(own[axis.number])}))
    if sizes:
        shapes.append(_changed(own, {axis.number: axis.smallest for axis in sizes}))
    return list(dict.fromkeys(shapes))


def compare(model: Model, run: Callable[[Tensor], Tensor], shapes: list[tuple[int, ...]]) -> list[Difference]:
    """The difference between `run` and the model for each shape; infinite if the outputs have other shapes."""
    was_training = model.training
    model.eval()
    differences = []
    try:
        with torch.no_grad():
            for shape in shapes:
                x = example_input(model, shape)
                expected = model(x)
                found = run(x)
                largest = float((found - expected).abs().max()) if found.shape == expected.shape else math.inf
                differences.append(Difference(shape, largest, float(expected.abs().max())))
    finally:
        model.train(was_training)
    return differences


def _changed(shape: tuple[int, ...], lengths: dict[int, int]) -> tuple[int, ...]:
    return tuple(lengths.get(number, length) for number, length in enumerate(shape))
