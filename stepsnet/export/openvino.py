"""OpenVINO's files (.xml with the graph, .bin beside it with the weights), and running them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.export.onnx import write_onnx
from stepsnet.export.program import Traced, trace
from stepsnet.files import whole_file
from stepsnet.models import Model
from stepsnet.optional import require

SECTION = "stepsnet"
PRECISIONS = ("f32", "bf16", "f16")


def to_openvino(model: Model, path: str | Path, *, dynamic: bool = True, any_size: bool = False, example: Tensor | None = None) -> Path:
    """Write a model for OpenVINO: `path` (.xml) and, as that format has it, the weights in a .bin beside; `openvino_callable` runs it."""
    return write_openvino(trace(model, dynamic=dynamic, any_size=any_size, example=example), Path(path))


def write_openvino(traced: Traced, path: Path) -> Path:
    if path.suffix != ".xml":
        raise UsageError(f"OpenVINO reads .xml (and a .bin beside it), not {path.name}")
    openvino = require("openvino", extra="export")
    # By way of ONNX: OpenVINO's own converter of torch programs reports its use over the network.
    with tempfile.TemporaryDirectory() as folder:
        graph = openvino.Core().read_model(str(write_onnx(traced, Path(folder) / "model.onnx")))
    for key, value in traced.facts.items():
        graph.set_rt_info(value, [SECTION, key])
    with whole_file(path) as unfinished:
        openvino.save_model(graph, unfinished, compress_to_fp16=False)
    return path


def openvino_callable(path: str | Path, threads: int | None = None, precision: str = "f32") -> Callable[[Tensor], Tensor]:
    """A function that runs OpenVINO's .xml on the CPU, on so many threads (default: as torch), computing in f32, bf16 or f16."""
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
    """What `stepsnet export` wrote into OpenVINO's file besides the graph."""
    graph = require("openvino", extra="export").Core().read_model(str(path))
    if not graph.has_rt_info([SECTION]):
        return {}
    return {key: graph.get_rt_info([SECTION, key]).astype(str) for key in graph.get_rt_info([SECTION]).value}
