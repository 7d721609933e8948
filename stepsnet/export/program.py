"""Models as programs of torch.export: what all formats are made from, and a format of its own (.pt2)."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.fx.experimental._config as shape_config
from torch import Tensor, nn
from torch.export import ExportedProgram

from stepsnet.errors import UsageError
from stepsnet.export.facts import FACTS, facts_of
from stepsnet.export.shapes import Axis, batch_axis, check_exportable, example_input, size_axes
from stepsnet.export.traceable import traceable
from stepsnet.files import whole_file
from stepsnet.models import Model


@dataclass(frozen=True)
class Traced:
    """A program, what of its input may vary, and what a reader of its file wants to know."""

    program: ExportedProgram
    axes: tuple[Axis, ...]
    facts: dict[str, str]


def free_axes(model: Model, *, dynamic: bool, any_size: bool) -> tuple[Axis, ...]:
    """What may vary: with `dynamic` the batch, with `any_size` also the pictures' size or the texts' length, where the family allows it."""
    axes = size_axes(model) if any_size else ()
    if any(not axis.holds(model.input_size[axis.number - 1]) for axis in axes):
        axes = ()  # a window larger than the last map of this model's own pictures
    return ((batch_axis(),) if dynamic else ()) + axes


def trace(model: Model, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None) -> Traced:
    """Trace a model. `example` gives the shape that does not vary, in place of a batch of 2 of the model's own input size."""
    check_exportable(model)
    axes = free_axes(model, dynamic=dynamic, any_size=any_size)
    if example is None:
        example = example_input(model, (2, *model.input_size))
    shape = list(example.shape)
    for axis in axes:  # lengths that coincide with no other, or the tracer would take them for the same
        shape[axis.number] = axis.smallest + (2 * axis.number + 3) * axis.step
    inputs = (example_input(model, tuple(shape)).to(example.dtype),)
    with torch.no_grad(), quiet(), _no_special_ones():
        program = torch.export.export(
            traceable(model), inputs, dynamic_shapes=({axis.number: axis.dim() for axis in axes},), strict=False
        )
    return Traced(program, axes, facts_of(model, axes))


def _no_special_ones() -> AbstractContextManager[object]:
    """One picture, or a map of one pixel, is traced like any other number, where torch has a setting for that (not yet in 2.6)."""
    if not hasattr(shape_config, "backed_size_oblivious"):
        return nullcontext()
    patch: AbstractContextManager[object] = shape_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]  # made at run time
    return patch


def to_torch_export(model: Model, path: str | Path, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None) -> Path:
    """Write a model as a program of torch.export (.pt2); `load_torch_export` reads it."""
    return write_torch_export(trace(model, dynamic=dynamic, any_size=any_size, example=example), Path(path))


def write_torch_export(traced: Traced, path: Path) -> Path:
    with whole_file(path) as unfinished, quiet():
        torch.export.save(traced.program, unfinished, extra_files={FACTS: json.dumps(traced.facts)})
    return path


def load_torch_export(path: str | Path) -> nn.Module:
    """The program in a .pt2 file, as a module to call. Torch unpickles parts of such a file: load only what you trust."""
    return _load(Path(path)).module()


def torch_export_facts(path: str | Path) -> dict[str, str]:
    """What `stepsnet export` wrote into a .pt2 file besides the program."""
    files = {FACTS: ""}
    _load(Path(path), files)
    return json.loads(files[FACTS] or "{}")


def _load(path: Path, files: dict[str, str] | None = None) -> ExportedProgram:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    with quiet():
        return torch.export.load(path, extra_files=files)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to themselves what exporters warn of and log while they work: it is for those who develop them."""
    logger_names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch._export")
    loggers = [(logger, logger.level) for logger in map(logging.getLogger, logger_names)]
    try:
        for logger, _ in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in loggers:
            logger.setLevel(level)
