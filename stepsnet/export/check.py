"""Export that proves itself: the file is run and compared with the model before it appears under its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepsnet.errors import UsageError, nearest
from stepsnet.export.onnx import onnx_session, write_onnx
from stepsnet.export.openvino import openvino_callable, write_openvino
from stepsnet.export.program import Traced, load_torch_export, trace, write_torch_export
from stepsnet.export.shapes import Axis, example_input
from stepsnet.files import whole_file
from stepsnet.models import Model

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Format:
    """One kind of file: its suffix, who writes it and who runs it."""

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
    """How far a file's output is from the model's, for one shape of input: absolute, and the largest output of the model beside it."""

    shape: tuple[int, ...]
    largest: float
    scale: float

    @property
    def holds(self) -> bool:
        """Within 1e-4, of the largest output where that is above 1; not so for a NaN."""
        return self.largest <= TOLERANCE * max(1.0, self.scale)

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "difference": self.largest, "largest_output": self.scale}


@dataclass(frozen=True)
class Exported:
    """A file that has been checked."""

    path: Path
    axes: tuple[Axis, ...]
    differences: tuple[Difference, ...]
    facts: dict[str, str]


def export_model(
    model: Model, path: str | Path, *, form: str = "onnx", any_size: bool = False, against: Model | None = None
) -> Exported:
    """Write a model to a file that takes any batch (`any_size`: and any size within its range), run it there, and compare.

    It is compared with the model, or with the one that it was made from (`against`: before its batch norms were folded, say).
    Only a file whose outputs are the model's to 1e-4 takes its place at `path`; otherwise nothing is left behind.
    """
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}{nearest(form, FORMATS)}; formats: {', '.join(FORMATS)}")
    chosen, path = FORMATS[form], Path(path)
    if path.suffix != chosen.suffix:
        raise UsageError(f"a file of format {form} ends in {chosen.suffix}, but {path.name} does not")
    with whole_file(path) as unfinished:
        traced = trace(model, any_size=any_size)
        chosen.write(traced, unfinished)
        differences = compare(against or model, chosen.load(unfinished), check_shapes((2, *model.input_size), traced.axes))
        for difference in differences:
            if not difference.holds:
                raise UsageError(
                    f"the {form} file does not do what the model does: for an input of {difference.shape} its output is "
                    f"{difference.largest:.2g} away, more than {TOLERANCE:g}; it was removed"
                )
    return Exported(path, traced.axes, tuple(differences), traced.facts)


def check_shapes(own: tuple[int, ...], axes: tuple[Axis, ...]) -> list[tuple[int, ...]]:
    """The shapes a file is tried with: the model's own, one input alone, three, and every other axis at another and at its least length."""
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
    """How far `run` is from the model, shape by shape."""
    was_training = model.training
    model.eval()
    differences = []
    try:
        with torch.no_grad():
            for shape in shapes:
                x = example_input(model, shape)
                expected = model(x)
                largest = float((run(x) - expected).abs().max())
                differences.append(Difference(shape, largest, float(expected.abs().max())))
    finally:
        model.train(was_training)
    return differences


def _changed(shape: tuple[int, ...], lengths: dict[int, int]) -> tuple[int, ...]:
    return tuple(lengths.get(number, length) for number, length in enumerate(shape))
