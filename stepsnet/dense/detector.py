"""Mask R-CNN and Cascade Mask R-CNN on torchvision's framework, over the maps of any backbone, and their MACs.

Legend: B images, C channels of the pyramid, K regions, L classes with the background, which is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.cost import count_macs
from stepsnet.dense.cascade import STAGES, CascadeRoIHeads, Targets
from stepsnet.dense.config import DetectConfig
from stepsnet.dense.maps import MapNorm, Maps, SpreadMaps, group_norm
from stepsnet.optional.torchvision import import_torchvision

import_torchvision()

from torchvision.models.detection.anchor_utils import AnchorGenerator  # noqa: E402
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor, TwoMLPHead  # noqa: E402
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN  # noqa: E402
from torchvision.models.detection.image_list import ImageList  # noqa: E402
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor  # noqa: E402
from torchvision.models.detection.roi_heads import RoIHeads  # noqa: E402
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead  # noqa: E402
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign  # noqa: E402
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool  # noqa: E402
from torchvision.ops.poolers import LevelMapper  # noqa: E402

BOX_SIZE, MASK_SIZE = 7, 14
"""Bins of a region for its box and for its mask; the mask output is twice as fine."""
ANCHORS = 3


class Detector(nn.Module):
    """Images (B, 3, H, W) of sizes (B, 2) in; losses out in training, one dict of detections per image otherwise."""

    def __init__(self, maps: Maps, config: DetectConfig, classes: int) -> None:
        super().__init__()
        pyramid = Pyramid(maps, config.channels)
        rpn = RegionProposalNetwork(
            make_anchors(pyramid, config), FullPrecision(RPNHead(config.channels, ANCHORS)), fg_iou_thresh=0.7,
            bg_iou_thresh=0.3, batch_size_per_image=config.rpn_samples, positive_fraction=0.5,
            pre_nms_top_n={"training": config.candidates, "testing": max(config.candidates // 2, 1)},
            post_nms_top_n={"training": config.proposals, "testing": config.proposals}, nms_thresh=0.7,
        )
        build = cascade_heads if config.heads == "cascade" else mask_rcnn_heads
        self.rcnn = GeneralizedRCNN(pyramid, rpn, build(pyramid, config, classes + 1), Frame(pyramid.reductions[-1]))

    def forward(self, images: Tensor, sizes: Tensor, targets: Targets | None = None) -> dict[str, Tensor] | Targets:
        cropped = [image[:, :height, :width] for image, (height, width) in zip(images, sizes.tolist(), strict=True)]
        return self.rcnn(cropped, targets)


def mask_rcnn_heads(pyramid: Pyramid, config: DetectConfig, classes: int) -> nn.Module:
    """torchvision's RoI heads: two fully connected layers for boxes, four convolutions for masks."""
    masks = mask_head(config, classes) if config.masks else (None, None)
    return RoIHeads(
        make_pool(pyramid, BOX_SIZE), TwoMLPHead(config.channels * BOX_SIZE**2, config.hidden),
        FullPrecision(FastRCNNPredictor(config.hidden, classes)), fg_iou_thresh=0.5, bg_iou_thresh=0.5,
        batch_size_per_image=config.rois, positive_fraction=0.25, bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
        score_thresh=config.score, nms_thresh=config.overlap, detections_per_img=config.detections,
        mask_roi_pool=make_pool(pyramid, MASK_SIZE) if config.masks else None, mask_head=masks[0],
        mask_predictor=masks[1],
    )


def cascade_heads(pyramid: Pyramid, config: DetectConfig, classes: int) -> nn.Module:
    """Three box heads of four convolutions and one fully connected layer, and three mask heads."""

    def box_head() -> nn.Module:
        size, convs = (config.channels, BOX_SIZE, BOX_SIZE), [config.channels] * 4
        trunk = FastRCNNConvFCHead(size, convs, [config.hidden], norm_layer=norm_layer(config.norm))
        return nn.Sequential(trunk, FullPrecision(FastRCNNPredictor(config.hidden, classes)))

    return CascadeRoIHeads(
        box_pool=make_pool(pyramid, BOX_SIZE),
        box_heads=[box_head() for _ in STAGES],
        mask_pool=make_pool(pyramid, MASK_SIZE) if config.masks else None,
        mask_heads=[nn.Sequential(*mask_head(config, classes)) for _ in STAGES] if config.masks else [],
        rois=config.rois,
        score=config.score,
        overlap=config.overlap,
        detections=config.detections,
    )


def mask_head(config: DetectConfig, classes: int) -> tuple[nn.Module, nn.Module]:
    trunk = MaskRCNNHeads(config.channels, [config.channels] * config.mask_convs, 1)
    return trunk, FullPrecision(MaskRCNNPredictor(config.channels, config.channels, classes))


class Pyramid(nn.Module):
    """An image to maps of `channels` each, by name: "0" the finest, "pool" one coarser than the backbone's coarsest.

    Backbones of several resolutions get a feature pyramid with a top-down path. A Vision Transformer gets ViTDet's
    simple one, whose levels are independent.
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
    """ViTDet's neck: a 1×1 and a 3×3 convolution with layer norms per level."""

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
    """Pads the images of a batch to one size that all maps divide. Replaces torchvision's `GeneralizedRCNNTransform`.

    Resizing and normalising happen in the data set.
    """

    def __init__(self, divisor: int) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, images: list[Tensor], targets: Targets | None = None) -> tuple[Any, Targets | None]:
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        height, width = (math.ceil(max(sides) / self.divisor) * self.divisor for sides in zip(*sizes, strict=True))
        canvas = images[0].new_zeros(len(images), images[0].shape[0], height, width)
        for row, image, (height, width) in zip(canvas, images, sizes, strict=True):
            row[:, :height, :width] = image
        return ImageList(canvas, sizes), targets

    def postprocess(
        self, detections: Targets, _framed: list[tuple[int, int]], _original: list[tuple[int, int]]
    ) -> Targets:
        """Boxes are already in pixels of the image; `at_original_size` resizes masks when they are needed."""
        return detections


class FullPrecision(nn.Module):
    """A head with outputs in single precision: bfloat16 is too coarse for coordinates."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Any) -> Any:
        return _to_float(self.head(x))


def _to_float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else type(value)(_to_float(item) for item in value)


def make_anchors(pyramid: Pyramid, config: DetectConfig) -> nn.Module:
    """Anchors of three shapes on every level. They are not parameters, so they are always made on the CPU."""
    with torch.device("cpu"):
        sizes = tuple((config.anchor_scale * reduction,) for reduction in pyramid.reductions)
        return AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))


def make_pool(pyramid: Pyramid, size: int) -> nn.Module:
    """Pools regions from the level for their size (FPN, Eq. 1), with explicit scales: torchvision guesses them."""
    reductions = pyramid.reductions[:-1]
    finest = round(math.log2(reductions[0]))
    pool = MultiScaleRoIAlign([str(index) for index in range(len(reductions))], size, 2)
    pool.scales = [1 / reduction for reduction in reductions]
    pool.map_levels = LevelMapper(
        finest, finest + len(reductions) - 1, canonical_scale=56 * reductions[0], canonical_level=finest + 2
    )
    return pool


def norm_layer(kind: str) -> Callable[[int], nn.Module]:
    """The class of the norm, called with the number of channels."""
    if kind == "group":
        return group_norm
    return nn.SyncBatchNorm if kind == "sync" else nn.BatchNorm2d


def detector_macs(
    detector: Detector, height: int, width: int, *, proposals: int = 1000, detections: int = 100
) -> dict[str, int]:
    """MACs of one image by part, by the convention of Table 2, counted on the meta device.

    Backbone, pyramid and proposals' head run on the whole image, each box head on `proposals` regions, each mask head
    on `detections` regions. RoI pooling, non-maximum suppression and pasting of masks are not counted.
    """
    pyramid, heads = detector.rcnn.backbone, detector.rcnn.roi_heads
    channels = pyramid.out_channels
    maps = [
        torch.empty(1, channels, -(-height // reduction), -(-width // reduction), device="meta")
        for reduction in pyramid.reductions
    ]
    boxes = torch.empty(proposals, channels, BOX_SIZE, BOX_SIZE, device="meta")
    masks = torch.empty(detections, channels, MASK_SIZE, MASK_SIZE, device="meta")
    box_heads, mask_heads = _region_heads(heads)
    return {
        "backbone and pyramid": count_macs(pyramid, torch.empty(1, 3, height, width, device="meta")),
        "proposals": count_macs(detector.rcnn.rpn.head, maps),
        "boxes": sum(count_macs(head, boxes) for head in box_heads),
        "masks": sum(count_macs(head, masks) for head in mask_heads),
    }


def _region_heads(heads: Any) -> tuple[list[nn.Module], list[nn.Module]]:
    """Box heads and mask heads of torchvision's or the cascade's RoI heads."""
    if isinstance(heads, CascadeRoIHeads):
        return list(heads.box_heads), list(heads.mask_heads)
    masks: list[nn.Module] = [nn.Sequential(heads.mask_head, heads.mask_predictor)] if heads.has_mask() else []
    return [nn.Sequential(heads.box_head, heads.box_predictor)], masks
