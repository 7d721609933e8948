"""Plain-PyTorch `nms` and `roi_align`, for where torchvision's compiled ones are missing. Memory is bounded whatever the input.

Legend: N boxes, K regions, B pictures, C channels, H, W height and width of the map, P, Q height and width of the output,
S, T sampling points a bin down and across.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 256
"""Boxes compared at a time with all that follow them."""
POINTS = 2**22
"""Sampled values (points × channels) computed at a time: 16 MB in single precision."""


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes (N, 4) that no better one overlaps by more than the threshold, best first."""
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
    """Overlaps (len(one), len(other))."""
    low, high = torch.maximum(one[:, None, :2], other[None, :, :2]), torch.minimum(one[:, None, 2:], other[None, :, 2:])
    common = (high - low).clamp(min=0).prod(dim=2)
    return common / (one_area[:, None] + other_area[None] - common)


def _greedy(overlapping: Tensor) -> Tensor:
    """Which of the boxes, best first, stay, given who overlaps whom: each one that stays removes those after it."""
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

    `rois` (K, 5) are picture number and corners. Points more than a pixel outside of the map count as zero, those less far take the
    value at the border. A `sampling_ratio` of 0 or less takes as many points as a bin has pixels, rounded up.
    """
    return _RoiAlign.apply(input, rois.detach(), spatial_scale, (pooled_height, pooled_width), sampling_ratio, aligned)  # type: ignore[no-untyped-call]


class _RoiAlign(torch.autograd.Function):
    """Keeps nothing between forward and backward but its inputs: each chunk of points is computed again for its gradient."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, rois: Tensor, scale: float, size: tuple[int, int], ratio: int, aligned: bool) -> Tensor:
        ctx.save_for_backward(maps, rois)
        ctx.options = (scale, size, ratio, aligned)
        pooled = maps.new_zeros(len(rois), maps.shape[1], *size)
        for members, picture, corners, points in _chunks(rois, maps.shape[1], *ctx.options):
            pooled[members] = _sampled(maps[picture], corners, size, points).to(pooled.dtype)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, rois = ctx.saved_tensors
        (gradient,) = gradients
        _, size, *_ = ctx.options
        total = torch.zeros_like(maps, dtype=torch.promote_types(maps.dtype, torch.float32))
        for members, picture, corners, points in _chunks(rois, maps.shape[1], *ctx.options):
            with torch.enable_grad():
                source = maps[picture].detach().requires_grad_()
                pooled = _sampled(source, corners, size, points)
            total[picture] += torch.autograd.grad(pooled, source, gradient[members].to(pooled.dtype))[0]
        return total.to(maps.dtype), None, None, None, None, None


def _chunks(
    rois: Tensor, channels: int, scale: float, size: tuple[int, int], ratio: int, aligned: bool
) -> Iterator[tuple[Tensor, int, Tensor, tuple[int, int]]]:
    """Regions that can be sampled together: their numbers, their picture, their corners (k, 4) on the map, and their points a bin."""
    corners = rois[:, 1:].to(torch.promote_types(rois.dtype, torch.float32)) * scale - (0.5 if aligned else 0.0)
    extent = corners[:, 2:] - corners[:, :2]
    if not aligned:
        extent = extent.clamp(min=1.0)
    corners = torch.cat((corners[:, :2], extent), dim=1)
    bins = torch.tensor(size, device=rois.device).flip(0)
    points = torch.full_like(extent, ratio) if ratio > 0 else (extent / bins).ceil()
    groups, group_of = torch.cat((rois[:, :1].to(points), points), dim=1).unique(dim=0, return_inverse=True)
    for number, (picture, across, down) in enumerate(groups.int().tolist()):
        if across < 1 or down < 1:
            continue  # a region without extent has no points, and its average stays zero
        members = (group_of == number).nonzero()[:, 0]
        together = max(1, POINTS // (channels * size[0] * size[1] * down * across))
        for part in members.split(together):
            yield part, picture, corners[part], (down, across)


def _sampled(source: Tensor, corners: Tensor, size: tuple[int, int], points: tuple[int, int]) -> Tensor:
    """(k, C, P, Q) from one picture's map (C, H, W); `corners` are x, y, width and height of each region."""
    channels, height, width = source.shape
    source = source.to(torch.promote_types(source.dtype, torch.float32))
    x = _places(corners[:, 0], corners[:, 2], size[1], points[1])
    y = _places(corners[:, 1], corners[:, 3], size[0], points[0])
    counted = _within(y, height)[:, :, None] * _within(x, width)[:, None, :]
    grid = torch.stack(torch.broadcast_tensors(_normal(x, width)[:, None, :], _normal(y, height)[:, :, None]), dim=3)
    grid = grid.to(source.dtype).reshape(1, -1, size[1] * points[1], 2)
    values = F.grid_sample(source[None], grid, mode="bilinear", padding_mode="border", align_corners=True)
    if not counted.all():
        values = values * counted.to(values.dtype).view(1, 1, *values.shape[2:])
    return F.avg_pool2d(values, points).view(channels, len(corners), *size).transpose(0, 1)


def _places(start: Tensor, extent: Tensor, bins: int, points: int) -> Tensor:
    """(k, bins × points) coordinates of the sampling points of each region along one axis."""
    steps = (torch.arange(bins * points, device=start.device, dtype=start.dtype) + 0.5) / (bins * points)
    return start[:, None] + steps * extent[:, None]


def _within(places: Tensor, length: int) -> Tensor:
    return ((places >= -1) & (places <= length)).to(places.dtype)


def _normal(places: Tensor, length: int) -> Tensor:
    """Pixels to the −1 … 1 of `grid_sample`; a map of one pixel has only one place."""
    return places * (2 / (length - 1)) - 1 if length > 1 else torch.zeros_like(places)
