"""Models as programs of torch.export: the source of all formats, and a format itself (.pt2)."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.fx.experimental._config as shape_config
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram

from stepsnet import __version__
from stepsnet.errors import UsageError
from stepsnet.export.shapes import FreeAxis, batch_axis, check_exportable, example_input, size_axes
from stepsnet.export.traceable import traceable
from stepsnet.files import whole_file
from stepsnet.models import Model

FACTS = "stepsnet.json"
"""The name of the facts inside a .pt2 file."""


@dataclass(frozen=True)
class Traced:
    """A program, the axes of its input that may vary, and the facts that are written into the file."""

    program: ExportedProgram
    axes: tuple[FreeAxis, ...]
    facts: dict[str, str]


def free_axes(model: Model, *, dynamic: bool, any_size: bool) -> tuple[FreeAxis, ...]:
    """Axes that may vary: with `dynamic` the batch, with `any_size` also image size or text length."""
    return ((batch_axis(),) if dynamic else ()) + (size_axes(model) if any_size else ())


def trace(model: Model, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None) -> Traced:
    """Trace a model. `example` gives the fixed axes; by default a batch of 2 of the model's own input size."""
    check_exportable(model)
    axes = free_axes(model, dynamic=dynamic, any_size=any_size)
    if example is None:
        example = example_input(model, (2, *model.input_size))
    shape = list(example.shape)
    for axis in axes:  # all lengths differ, or the tracer would treat equal ones as the same
        shape[axis.number] = axis.smallest + (2 * axis.number + 3) * axis.step
    inputs = (example_input(model, tuple(shape)).to(example.dtype),)
    with torch.no_grad(), quiet(), _sizes_of_one_are_general():
        try:
            program = torch.export.export(
                traceable(model), inputs, dynamic_shapes=({axis.number: axis.dim() for axis in axes},), strict=False
            )
        except UserError as error:
            size = "×".join(map(str, model.input_size))
            raise UsageError(f"torch.export has no program for every batch size with inputs of {size}, as for maps of "
                             "one pixel; give a larger size.") from error
    return Traced(program, axes, facts_of(model, axes))


def facts_of(model: Model, axes: Sequence[FreeAxis]) -> dict[str, str]:
    """Name, plan, classes, normalisation, free axes and version, each as a string (JSON unless it is a single word)."""
    config = model.default_cfg
    facts = {
        "name": config.get("architecture", type(model).__name__),
        "family": model.family,
        "plan": model.plan,
        "version": __version__,
        "input_size": json.dumps(model.input_size),
        "free": json.dumps({axis.name: [axis.smallest, axis.largest, axis.step] for axis in axes}),
    }
    known = ("num_classes", "class_names", "mean", "std", "vocab_size")
    return facts | {key: json.dumps(config[key], ensure_ascii=False) for key in known if key in config}


def _sizes_of_one_are_general() -> AbstractContextManager[object]:
    """Do not specialise the trace for a batch or map of size 1, if torch has the setting for that (2.6 does not)."""
    if not hasattr(shape_config, "backed_size_oblivious"):
        return nullcontext()
    patch: AbstractContextManager[object] = shape_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]  # made at run time
    return patch


def to_torch_export(
    model: Model, path: str | Path, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None
) -> Path:
    """Write a model as a torch.export program (.pt2); `load_torch_export` reads it."""
    return write_torch_export(trace(model, dynamic=dynamic, any_size=any_size, example=example), Path(path))


def write_torch_export(traced: Traced, path: Path) -> Path:
    with whole_file(path) as unfinished, quiet():
        torch.export.save(traced.program, unfinished, extra_files={FACTS: json.dumps(traced.facts)})
    return path


def load_torch_export(path: str | Path) -> nn.Module:
    """The program in a .pt2 file, as a module. Torch unpickles parts of such a file: load only files you trust."""
    return _load(Path(path)).module()


def torch_export_facts(path: str | Path) -> dict[str, str]:
    """The facts in a .pt2 file: name, plan, classes, … of the model."""
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
    """Hide warnings and log messages of the exporters, which are for their developers."""
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
