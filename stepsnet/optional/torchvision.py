"""Makes `import torchvision` work beside a torch that cannot load torchvision's compiled operators.

PyPI's torchvision wheel for Linux is a CUDA build. Its library `_C.so` does not load beside a CPU build of torch.
torchvision continues without it, but then registers shapes for the operators `nms` and `qnms`, which only that library
declares. The import fails with "operator torchvision::nms does not exist", and so does the import of timm.

The fix is to declare the operators in `DECLARED` before the import. Detection also needs to run two of them: `nms` and
`roi_align` get the kernels in plain PyTorch at the end of this file. torchvision is told that these two are available,
because its own fallback for `roi_align` needs unbounded memory. Where the compiled library loads, nothing is declared
or replaced.

Legend: N boxes, K regions, B images, C channels, H, W height and width of the map, P, Q height and width of the output,
S, T sampling points per bin, down and across.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepsnet.optional import TorchvisionFinder, require

DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    (
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    ),
)
CHECKS = {"torchvision.ops.boxes": ("_assert_has_ops",), "torchvision.ops.roi_align": ("_assert_has_ops", "_has_ops")}
"""Modules that call `nms` or `roi_align`, and their functions that check for the compiled library first."""
BLOCK = 256
"""Boxes that `nms` compares at a time with all later ones."""
POINTS = 2**22
"""Values (points × channels) that `roi_align` samples at a time: 16 MB in single precision."""


def import_torchvision() -> ModuleType:
    """Import torchvision beside any build of torch; afterwards its submodules can be imported as usual."""
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    _forget_torchvision()  # submodules of an earlier failed import have recorded that there are no operators
    TorchvisionFinder.install()
    try:
        return require("torchvision", extra="vision")
    except BaseException:
        _forget_torchvision()
        raise


@contextmanager
def operators(folder: Path) -> Iterator[None]:
    """Import torchvision inside this: its operators are declared before, unless its compiled library in `folder`
    loads."""
    compiled = _compiled_operators_load(folder)
    if not compiled:
        _declare_operators()
    yield
    if not compiled:
        _enable_own_kernels()


def import_torchvision_if_installed() -> None:
    """Call this before importing transformers, some modules of which import torchvision if it is installed."""
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()


def _compiled_operators_load(folder: Path) -> bool:
    """Whether torch can load the library `_C` in torchvision's folder; found and loaded as torchvision does it."""
    library = FileFinder(str(folder), (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec("_C")
    if library is None or library.origin is None:
        return False
    try:
        torch.ops.load_library(library.origin)
    except OSError:
        return False
    return True


@functools.cache  # an operator can be declared once per process, and exists as long as the library object
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in DECLARED:
        library.define(schema)
    library.impl("nms", nms, "CompositeExplicitAutograd")
    library.impl("roi_align", roi_align, "CompositeImplicitAutograd")
    return library


def _enable_own_kernels() -> None:
    """Make torchvision's checks for its compiled library pass for the two functions that have kernels here."""
    for name, checks in CHECKS.items():
        for check in checks:
            if name in sys.modules:
                setattr(sys.modules[name], check, lambda: True)


def _forget_torchvision() -> None:
    """Remove all modules of an unfinished import, so that the next attempt starts from the beginning."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes (N, 4) that no better box overlaps by more than the threshold, best score first."""
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order].float()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    for start in range(0, len(boxes), BLOCK):
        stop = min(start + BLOCK, len(boxes))
        members = start + alive[start:stop].nonzero()[:, 0]
        if len(members) == 0:
            continue
        inside = _iou(boxes[members], area[members], boxes[members], area[members]) > iou_threshold
        kept = members[_greedy(inside).to(members.device)]
        alive[start:stop] = False
        alive[kept] = True
        if stop < len(boxes):
            alive[stop:] &= ~(_iou(boxes[kept], area[kept], boxes[stop:], area[stop:]) > iou_threshold).any(dim=0)
    return order[alive]


def _iou(one: Tensor, one_area: Tensor, other: Tensor, other_area: Tensor) -> Tensor:
    """IoU (len(one), len(other))."""
    low, high = torch.maximum(one[:, None, :2], other[None, :, :2]), torch.minimum(one[:, None, 2:], other[None, :, 2:])
    common = (high - low).clamp(min=0).prod(dim=2)
    return common / (one_area[:, None] + other_area[None] - common)


def _greedy(overlapping: Tensor) -> Tensor:
    """Which of the boxes, sorted by score, are kept, given which pairs overlap: each kept box removes later ones."""
    rows = overlapping.cpu().numpy()
    removed = rows[0] & False
    stays = []
    for index, row in enumerate(rows):
        stays.append(not removed[index])
        if stays[-1]:
            removed |= row
    return torch.tensor(stays)


def roi_align(
    input: Tensor,  # noqa: A002  (torchvision's name)
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Average of bilinear samples in each of P × Q bins of each region: (K, C, P, Q).

    `rois` (K, 5) are image index and corners. Points more than one pixel outside the map count as zero; closer ones
    take the value at the border. A `sampling_ratio` of 0 or less takes as many points as a bin has pixels, rounded up.
    """
    size = (pooled_height, pooled_width)
    return _RoiAlign.apply(input, rois.detach(), spatial_scale, size, sampling_ratio, aligned)  # type: ignore[no-untyped-call]


class _RoiAlign(torch.autograd.Function):
    """Saves only its inputs for backward; each chunk of points is computed again there."""

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, rois: Tensor, scale: float, size: tuple[int, int], ratio: int, aligned: bool
    ) -> Tensor:
        ctx.save_for_backward(maps, rois)
        ctx.options = (scale, size, ratio, aligned)
        pooled = maps.new_zeros(len(rois), maps.shape[1], *size)
        for members, image, corners, points in _chunks(rois, maps.shape[1], *ctx.options):
            pooled[members] = _sampled(maps[image], corners, size, points).to(pooled.dtype)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, rois = ctx.saved_tensors
        (gradient,) = gradients
        _, size, *_ = ctx.options
        total = torch.zeros_like(maps, dtype=torch.promote_types(maps.dtype, torch.float32))
        for members, image, corners, points in _chunks(rois, maps.shape[1], *ctx.options):
            with torch.enable_grad():
                source = maps[image].detach().requires_grad_()
                pooled = _sampled(source, corners, size, points)
            total[image] += torch.autograd.grad(pooled, source, gradient[members].to(pooled.dtype))[0]
        return total.to(maps.dtype), None, None, None, None, None


def _chunks(
    rois: Tensor, channels: int, scale: float, size: tuple[int, int], ratio: int, aligned: bool
) -> Iterator[tuple[Tensor, int, Tensor, tuple[int, int]]]:
    """Regions that can be sampled together: their indices, image, corners (k, 4) on the map, and points per bin."""
    corners = rois[:, 1:].to(torch.promote_types(rois.dtype, torch.float32)) * scale - (0.5 if aligned else 0.0)
    extent = corners[:, 2:] - corners[:, :2]
    if not aligned:
        extent = extent.clamp(min=1.0)
    corners = torch.cat((corners[:, :2], extent), dim=1)
    bins = torch.tensor(size, device=rois.device).flip(0)
    points = torch.full_like(extent, ratio) if ratio > 0 else (extent / bins).ceil()
    groups, group_of = torch.cat((rois[:, :1].to(points), points), dim=1).unique(dim=0, return_inverse=True)
    for number, (image, across, down) in enumerate(groups.int().tolist()):
        if across < 1 or down < 1:
            continue  # a region without extent has no points; its average stays zero
        members = (group_of == number).nonzero()[:, 0]
        together = max(1, POINTS // (channels * size[0] * size[1] * down * across))
        for part in members.split(together):
            yield part, image, corners[part], (down, across)


def _sampled(source: Tensor, corners: Tensor, size: tuple[int, int], points: tuple[int, int]) -> Tensor:
    """(k, C, P, Q) from one image's map (C, H, W); `corners` are x, y, width and height of each region."""
    channels, height, width = source.shape
    source = source.to(torch.promote_types(source.dtype, torch.float32))
    x = _coordinates(corners[:, 0], corners[:, 2], size[1], points[1])
    y = _coordinates(corners[:, 1], corners[:, 3], size[0], points[0])
    counted = _within(y, height)[:, :, None] * _within(x, width)[:, None, :]
    grid = torch.stack(torch.broadcast_tensors(_normal(x, width)[:, None, :], _normal(y, height)[:, :, None]), dim=3)
    grid = grid.to(source.dtype).reshape(1, -1, size[1] * points[1], 2)
    values = F.grid_sample(source[None], grid, mode="bilinear", padding_mode="border", align_corners=True)
    if not counted.all():
        values = values * counted.to(values.dtype).view(1, 1, *values.shape[2:])
    return F.avg_pool2d(values, points).view(channels, len(corners), *size).transpose(0, 1)


def _coordinates(start: Tensor, extent: Tensor, bins: int, points: int) -> Tensor:
    """(k, bins × points) coordinates of the sampling points of each region along one axis."""
    steps = (torch.arange(bins * points, device=start.device, dtype=start.dtype) + 0.5) / (bins * points)
    return start[:, None] + steps * extent[:, None]


def _within(coordinates: Tensor, length: int) -> Tensor:
    return ((coordinates >= -1) & (coordinates <= length)).to(coordinates.dtype)


def _normal(coordinates: Tensor, length: int) -> Tensor:
    """Pixels to the −1 … 1 of `grid_sample`; in a map of one pixel, all coordinates are 0."""
    return coordinates * (2 / (length - 1)) - 1 if length > 1 else torch.zeros_like(coordinates)
