"""ONNX (.onnx) and OpenVINO (.xml and .bin) files: writing them and running them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.export.program import Traced, quiet, trace
from stepsnet.files import whole_file
from stepsnet.models import Model
from stepsnet.optional import require

INPUT, OUTPUT = "input", "output"
PREFIX = "stepsnet."
"""Precedes the name of each fact in an ONNX file, whose metadata also holds other entries."""
SECTION = "stepsnet"
PRECISIONS = ("f32", "bf16", "f16")


def to_onnx(
    model: Model, path: str | Path, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None
) -> Path:
    """Write a model with its weights to one ONNX file; `onnx_session` runs it."""
    return write_onnx(trace(model, dynamic=dynamic, any_size=any_size, example=example), Path(path))


def write_onnx(traced: Traced, path: Path) -> Path:
    require("onnxscript", extra="export")
    with quiet():
        program = torch.onnx.export(
            traced.program, input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False
        )
    assert program is not None  # no path was given to write to
    for key, value in traced.facts.items():
        program.model.metadata_props[PREFIX + key] = value
    with whole_file(path) as unfinished:
        program.save(unfinished, external_data=False)
    return path


def onnx_session(path: str | Path, threads: int | None = None) -> Callable[[Tensor], Tensor]:
    """A function that runs an ONNX file in onnxruntime on the CPU. `threads`: by default as many as torch uses."""
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
    """The facts in an ONNX file: name, plan, classes, … of the model."""
    onnx = require("onnx", extra="export")
    model = onnx.load(str(path))
    return {
        entry.key.removeprefix(PREFIX): entry.value for entry in model.metadata_props if entry.key.startswith(PREFIX)
    }


def to_openvino(
    model: Model, path: str | Path, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None
) -> Path:
    """Write a model for OpenVINO: `path` (.xml) and the weights in a .bin beside it; `openvino_callable` runs it."""
    return write_openvino(trace(model, dynamic=dynamic, any_size=any_size, example=example), Path(path))


def write_openvino(traced: Traced, path: Path) -> Path:
    if path.suffix != ".xml":
        raise UsageError(f"OpenVINO reads .xml (with a .bin beside it), not {path.name}")
    openvino = require("openvino", extra="export")
    # Converted from ONNX: OpenVINO's own converter of torch programs sends telemetry.
    with tempfile.TemporaryDirectory() as folder:
        graph = openvino.Core().read_model(str(write_onnx(traced, Path(folder) / "model.onnx")))
    for key, value in traced.facts.items():
        graph.set_rt_info(value, [SECTION, key])
    with whole_file(path) as unfinished:
        openvino.save_model(graph, unfinished, compress_to_fp16=False)
    return path


def openvino_callable(
    path: str | Path, threads: int | None = None, precision: str = "f32"
) -> Callable[[Tensor], Tensor]:
    """A function that runs OpenVINO's .xml on the CPU. `threads`: by default as many as torch uses."""
    openvino = require("openvino", extra="export")
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    if precision not in PRECISIONS:
        raise UsageError(f"OpenVINO computes in {', '.join(PRECISIONS)}, not in {precision!r}")
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    output = compiled.output(0)
    return lambda x: torch.from_numpy(compiled(x.numpy(force=True), share_inputs=True)[output])


def openvino_facts(path: str | Path) -> dict[str, str]:
    """The facts in an OpenVINO file: name, plan, classes, … of the model."""
    graph = require("openvino", extra="export").Core().read_model(str(path))
    if not graph.has_rt_info([SECTION]):
        return {}
    return {key: graph.get_rt_info([SECTION, key]).astype(str) for key in graph.get_rt_info([SECTION]).value}
