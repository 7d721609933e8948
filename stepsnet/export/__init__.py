"""Export to ONNX, torch.export and OpenVINO, from one trace."""

from stepsnet.export.check import FORMATS, Difference, Exported, export_model
from stepsnet.export.formats import onnx_facts, onnx_session, openvino_callable, openvino_facts, to_onnx, to_openvino
from stepsnet.export.program import load_torch_export, to_torch_export, torch_export_facts
from stepsnet.export.shapes import at_size, has_batch_norms, size_axes

__all__ = [
    "FORMATS",
    "Difference",
    "Exported",
    "at_size",
    "export_model",
    "has_batch_norms",
    "load_torch_export",
    "onnx_facts",
    "onnx_session",
    "openvino_callable",
    "openvino_facts",
    "size_axes",
    "to_onnx",
    "to_openvino",
    "to_torch_export",
    "torch_export_facts",
]
