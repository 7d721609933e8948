"""The parts of a detector around torchvision's: pyramid, poolers, norms, and outputs in full precision.

Legend: B pictures, C channels of the pyramid, K regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.dense.config import DetectConfig
from stepsnet.dense.maps import MapNorm, Maps, SpreadMaps, group_norm
from stepsnet.optional.torchvision import import_torchvision

import_torchvision()  # before anything of torchvision can be named

from torchvision.models.detection.anchor_utils import AnchorGenerator  # noqa: E402
from torchvision.models.detection.image_list import ImageList  # noqa: E402
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign  # noqa: E402
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool  # noqa: E402
from torchvision.ops.poolers import LevelMapper  # noqa: E402

Targets = list[dict[str, Tensor]]


class Pyramid(nn.Module):
    """A picture to maps of `channels` each, by name: "0" the finest, and "pool" one coarser than the backbone's coarsest.

    Backbones of several resolutions get a feature pyramid with its top-down path, a Vision Transformer the simple one of ViTDet,
    whose levels do not exchange anything.
    """

    def __init__(self, maps: Maps, channels: int) -> None:
        super().__init__()
        self.maps = maps
        self.out_channels = channels
        self.reductions = [*maps.reductions, 2 * maps.reductions[-1]]
        self.neck: nn.Module
        if isinstance(maps, SpreadMaps):
            self.neck = SimpleNeck(maps.channels, channels)
        else:
            self.neck = FeaturePyramidNetwork(maps.channels, channels, LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.neck({str(index): features for index, features in enumerate(self.maps(images))})


class SimpleNeck(nn.Module):
    """ViTDet's: to each level a 1×1 and a 3×3 convolution with layer norms."""

    def __init__(self, in_channels: list[int], channels: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, channels, 1, bias=False), MapNorm(channels),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False), MapNorm(channels),
            )
            for width in in_channels
        )  # fmt: skip

    def forward(self, maps: dict[str, Tensor]) -> dict[str, Tensor]:
        pyramid = {name: level(features) for level, (name, features) in zip(self.levels, maps.items(), strict=True)}
        pyramid["pool"] = list(pyramid.values())[-1][:, :, ::2, ::2]
        return pyramid


class Frame(nn.Module):
    """Pictures of one batch on one canvas whose sides every map divides. Resizing and normalising have happened in the data.

    In torchvision this is the place of `GeneralizedRCNNTransform`.
    """

    def __init__(self, divisor: int) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, images: list[Tensor], targets: Targets | None = None) -> tuple[Any, Targets | None]:
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        height, width = (math.ceil(max(sides) / self.divisor) * self.divisor for sides in zip(*sizes, strict=True))
        canvas = images[0].new_zeros(len(images), images[0].shape[0], height, width)
        for place, image, (rows, columns) in zip(canvas, images, sizes, strict=True):
            place[:, :rows, :columns] = image
        return ImageList(canvas, sizes), targets

    def postprocess(self, detections: Targets, _framed: list[tuple[int, int]], _original: list[tuple[int, int]]) -> Targets:
        """Boxes are in pixels of the picture already; masks stay as small as the head made them until somebody wants them."""
        return detections


class FullPrecision(nn.Module):
    """The outputs of a head in single precision, whatever it computes in: bfloat16 is too coarse for coordinates."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Any) -> Any:
        return _to_float(self.head(x))


def _to_float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else type(value)(_to_float(item) for item in value)


def make_anchors(pyramid: Pyramid, config: DetectConfig) -> nn.Module:
    """Anchors of three shapes on every level. Their corners are no parameters, so they are made on the CPU even where the model is not."""
    with torch.device("cpu"):
        sizes = tuple((config.anchor_scale * reduction,) for reduction in pyramid.reductions)
        return AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))


def make_pool(pyramid: Pyramid, size: int) -> nn.Module:
    """Regions from the level that suits their size (FPN, Eq. 1), at the levels' true scales: torchvision would guess them."""
    reductions = pyramid.reductions[:-1]
    finest = round(math.log2(reductions[0]))
    pool = MultiScaleRoIAlign([str(index) for index in range(len(reductions))], size, 2)
    pool.scales = [1 / reduction for reduction in reductions]
    pool.map_levels = LevelMapper(finest, finest + len(reductions) - 1, canonical_scale=56 * reductions[0], canonical_level=finest + 2)
    return pool


def norm_layer(kind: str) -> Callable[[int], nn.Module]:
    """The norm of a number of channels."""
    if kind == "group":
        return group_norm
    return nn.SyncBatchNorm if kind == "sync" else nn.BatchNorm2d
