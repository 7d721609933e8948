"""ONNX files, and running them in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.export.facts import PREFIX
from stepsnet.export.program import Traced, quiet, trace
from stepsnet.files import whole_file
from stepsnet.models import Model
from stepsnet.optional import require

INPUT, OUTPUT = "input", "output"


def to_onnx(model: Model, path: str | Path, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None) -> Path:
    """Write a model as one ONNX file, weights inside; `onnx_session` runs it."""
    return write_onnx(trace(model, dynamic=dynamic, any_size=any_size, example=example), Path(path))


def write_onnx(traced: Traced, path: Path) -> Path:
    require("onnxscript", extra="export")
    with quiet():
        program = torch.onnx.export(traced.program, input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False)
    assert program is not None  # no path was given to write to
    for key, value in traced.facts.items():
        program.model.metadata_props[PREFIX + key] = value
    with whole_file(path) as unfinished:
        program.save(unfinished, external_data=False)
    return path


def onnx_session(path: str | Path, threads: int | None = None) -> Callable[[Tensor], Tensor]:
    """A function that runs an ONNX file in onnxruntime on the CPU, on so many threads (default: as torch)."""
    runtime = require("onnxruntime", extra="export")
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy(force=True)})[0])


def onnx_facts(path: str | Path) -> dict[str, str]:
    """What `stepsnet export` wrote into an ONNX file besides the graph."""
    onnx = require("onnx", extra="export")
    model = onnx.load(str(path))
    return {entry.key.removeprefix(PREFIX): entry.value for entry in model.metadata_props if entry.key.startswith(PREFIX)}
