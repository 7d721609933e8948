"""The plain-PyTorch `nms` and `roi_align` against onnxruntime's operators and against simple loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stepsnet.optional import torchvision as kernels
from stepsnet.optional.torchvision import import_torchvision


def some_boxes(count: int, side: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * side
    return torch.cat((corner, corner + 1 + torch.rand(count, 2, generator=generator) * side / 2), dim=1)


def onnx_session(operator: str, inputs: dict[str, int], **attributes: Any) -> Any:
    """An onnxruntime session of one operator; `inputs` name their ONNX element types."""
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    kind = onnx.TensorProto.INT64 if operator == "NonMaxSuppression" else onnx.TensorProto.FLOAT
    node = onnx.helper.make_node(operator, list(inputs), ["out"], **attributes)
    declared = [onnx.helper.make_tensor_value_info(name, element, None) for name, element in inputs.items()]
    graph = onnx.helper.make_graph([node], "one", declared, [onnx.helper.make_tensor_value_info("out", kind, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 16)], ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def onnx_roi_align(
    maps: Tensor, rois: Tensor, scale: float, size: tuple[int, int], ratio: int, aligned: bool
) -> Tensor:
    session = onnx_session(
        "RoiAlign", {"maps": 1, "rois": 1, "images": 7},
        output_height=size[0], output_width=size[1], spatial_scale=scale,
        sampling_ratio=max(ratio, 0), coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip
    feeds = {"maps": maps.numpy(), "rois": rois[:, 1:].numpy(), "images": rois[:, 0].long().numpy()}
    return torch.from_numpy(session.run(None, feeds)[0])


def slow_roi_align(
    maps: Tensor, rois: Tensor, scale: float, size: tuple[int, int], ratio: int, aligned: bool
) -> Tensor:
    """The definition: for each bin the mean of bilinear samples, point by point."""
    height, width = maps.shape[2:]

    def sample(image: int, y: float, x: float) -> Tensor:
        if not (-1 <= y <= height and -1 <= x <= width):
            return maps[image, :, 0, 0] * 0
        y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
        top, left = int(y), int(x)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        down, across = y - top, x - left
        upper = maps[image, :, top, left] * (1 - across) + maps[image, :, top, right] * across
        lower = maps[image, :, bottom, left] * (1 - across) + maps[image, :, bottom, right] * across
        return upper * (1 - down) + lower * down

    regions = []
    for image, *corners in rois.tolist():
        x1, y1, x2, y2 = (corner * scale - (0.5 if aligned else 0.0) for corner in corners)
        w, h = (x2 - x1, y2 - y1) if aligned else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
        n, m = (ratio, ratio) if ratio > 0 else (int(np.ceil(h / size[0])), int(np.ceil(w / size[1])))
        bins = []
        for p in range(size[0]):
            for q in range(size[1]):
                ys = [y1 + (p + (i + 0.5) / n) * h / size[0] for i in range(n)]
                xs = [x1 + (q + (j + 0.5) / m) * w / size[1] for j in range(m)]
                bins.append(torch.stack([sample(int(image), y, x) for y in ys for x in xs]).mean(dim=0))
        regions.append(torch.stack(bins, dim=1).view(-1, *size))
    return torch.stack(regions)


SETTINGS = [(0.5, (3, 3), 2), (0.25, (2, 4), 0), (1.0, (5, 5), 1)]
CASES = [(*setting, aligned) for setting in SETTINGS for aligned in (False, True)]


def roi_case(scale: float, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Maps of two images, and regions of which some lie slightly or far outside the image."""
    maps = torch.randn(2, 3, 11, 13, generator=torch.Generator().manual_seed(seed))
    boxes = some_boxes(14, 12 / scale, seed) - torch.tensor([3.0, 2.0, 3.0, 2.0])
    return maps, torch.cat((torch.arange(14)[:, None] % 2, boxes), dim=1).float()


@pytest.mark.parametrize(("scale", "size", "ratio", "aligned"), CASES)
def test_roi_align_equals_onnxruntime(scale: float, size: tuple[int, int], ratio: int, aligned: bool) -> None:
    maps, rois = roi_case(scale)
    expected = onnx_roi_align(maps, rois, scale, size, ratio, aligned)
    torch.testing.assert_close(kernels.roi_align(maps, rois, scale, *size, ratio, aligned), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("scale", "size", "ratio", "aligned"), CASES)
def test_roi_align_equals_its_definition_in_values_and_gradients(
    scale: float, size: tuple[int, int], ratio: int, aligned: bool
) -> None:
    maps, rois = roi_case(scale)
    maps.requires_grad_()
    ours, slow = (
        kernels.roi_align(maps, rois, scale, *size, ratio, aligned),
        slow_roi_align(maps, rois, scale, size, ratio, aligned),
    )
    weights = torch.randn(ours.shape)
    gradients = [torch.autograd.grad((result * weights).sum(), maps)[0] for result in (ours, slow)]
    torch.testing.assert_close(ours, slow, atol=1e-4, rtol=0)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=0)


def test_roi_align_does_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, rois = roi_case(0.5)
    whole = kernels.roi_align(maps, rois, 0.5, 3, 3, 2, False)
    monkeypatch.setattr(kernels, "POINTS", 1)
    torch.testing.assert_close(kernels.roi_align(maps, rois, 0.5, 3, 3, 2, False), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_roi_align_keeps_the_dtype_of_its_input(dtype: torch.dtype) -> None:
    maps, rois = roi_case(0.5)
    ours = kernels.roi_align(maps.to(dtype), rois.to(dtype), 0.5, 3, 3, 2, False)
    assert ours.dtype == dtype


def test_no_regions_give_no_output_and_no_gradient() -> None:
    maps = torch.randn(1, 2, 4, 4, requires_grad=True)
    pooled = kernels.roi_align(maps, torch.zeros(0, 5), 1.0, 3, 3, 2, False)
    assert pooled.shape == (0, 2, 3, 3)
    (gradient,) = torch.autograd.grad(pooled.sum(), maps)
    assert not gradient.any()


def onnx_nms(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    session = onnx_session("NonMaxSuppression", {"boxes": 1, "scores": 1, "most": 7, "iou": 1})
    corners = boxes[:, [1, 0, 3, 2]][None].numpy()
    limits = {"most": np.array([len(boxes)]), "iou": np.array([threshold], dtype=np.float32)}
    feeds = {"boxes": corners, "scores": scores[None, None].numpy(), **limits}
    return session.run(None, feeds)[0][:, 2].tolist()


def slow_nms(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    kept: list[int] = []
    for index in scores.argsort(descending=True).tolist():
        overlaps = (float(_overlap(boxes[index], boxes[other])) for other in kept)
        if all(overlap <= threshold for overlap in overlaps):
            kept.append(index)
    return kept


def _overlap(one: Tensor, other: Tensor) -> Tensor:
    common = (torch.minimum(one[2:], other[2:]) - torch.maximum(one[:2], other[:2])).clamp(min=0).prod()
    return common / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - common)


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7])
@pytest.mark.parametrize("reference", [onnx_nms, slow_nms])
def test_nms_equals_the_references(reference: Any, threshold: float) -> None:
    boxes, scores = some_boxes(120, 40), torch.rand(120)
    assert kernels.nms(boxes, scores, threshold).tolist() == reference(boxes, scores, threshold)


def test_nms_does_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes, scores = some_boxes(90, 30), torch.rand(90)
    whole = kernels.nms(boxes, scores, 0.4).tolist()
    monkeypatch.setattr(kernels, "BLOCK", 7)
    assert kernels.nms(boxes, scores, 0.4).tolist() == whole


def test_nms_of_no_boxes_returns_no_indices() -> None:
    assert kernels.nms(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []


def test_torchvision_uses_these_kernels() -> None:
    import_torchvision()
    from torchvision.ops import batched_nms, roi_align

    maps, rois = roi_case(0.5)
    torch.testing.assert_close(
        roi_align(maps, rois, (3, 3), 0.5, 2), kernels.roi_align(maps, rois, 0.5, 3, 3, 2, False), atol=1e-4, rtol=0
    )
    boxes = some_boxes(20, 10)
    assert len(batched_nms(boxes, torch.rand(20), torch.arange(20), 0.5)) == 20


def test_compiled_operators_are_never_replaced(tmp_path: Path) -> None:
    """Nothing is added to a torchvision whose library loads and declares its own operators."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("")
    (tmp_path / "torchvision/_C.so").write_bytes(b"")
    code = f"""
import sys, torch
sys.path.insert(0, {str(tmp_path)!r})
def load(path):
    global library
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torch.ops.load_library = load
from stepsnet.optional.torchvision import import_torchvision
import_torchvision()
print(torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::nms", "CompositeExplicitAutograd"))
print(hasattr(torch.ops.torchvision, "roi_align"))
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]


def test_roi_align_uses_bounded_memory() -> None:
    """1,000 regions of 14 × 14 bins from the largest map of an 800 × 1280 image, forward and backward."""
    code = """
import resource, torch
torch.set_num_threads(1)
from stepsnet.optional import torchvision as kernels
maps = torch.zeros(1, 32, 200, 320, requires_grad=True)
corners = torch.rand(1000, 2) * 600
rois = torch.cat((torch.zeros(1000, 1), corners, corners + 20 + torch.rand(1000, 2) * 400), 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pooled = kernels.roi_align(maps, rois, 0.25, 14, 14, 2, False)
pooled.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    output, maps = 1000 * 32 * 14 * 14 * 4 / 2**20, 32 * 200 * 320 * 4 / 2**20
    assert int(answer.stdout) < 2 * output + 4 * maps + 150
