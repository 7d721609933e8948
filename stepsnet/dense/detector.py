"""Mask R-CNN and Cascade Mask R-CNN on torchvision's framework, over the maps of any backbone.

Legend: B pictures, C channels of the pyramid, K regions, L classes with the background, which is 0.
"""

from __future__ import annotations

from torch import Tensor, nn

from stepsnet.dense.cascade import STAGES, CascadeRoIHeads
from stepsnet.dense.config import DetectConfig
from stepsnet.dense.maps import Maps
from stepsnet.dense.parts import Frame, FullPrecision, Pyramid, Targets, make_anchors, make_pool, norm_layer

# After `parts`, which makes torchvision importable.
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor, TwoMLPHead  # isort: skip
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN  # isort: skip
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor  # isort: skip
from torchvision.models.detection.roi_heads import RoIHeads  # isort: skip
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead  # isort: skip

BOX_SIZE, MASK_SIZE = 7, 14
"""Bins of a region for its box and for its mask; the mask comes out twice as fine."""
ANCHORS = 3


class Detector(nn.Module):
    """Pictures (B, 3, H, W) of sizes (B, 2) in; losses by name in training, and in evaluation one dict of detections a picture."""

    def __init__(self, maps: Maps, config: DetectConfig, classes: int) -> None:
        super().__init__()
        pyramid = Pyramid(maps, config.channels)
        rpn = RegionProposalNetwork(
            make_anchors(pyramid, config),
            FullPrecision(RPNHead(config.channels, ANCHORS)),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=config.rpn_samples,
            positive_fraction=0.5,
            pre_nms_top_n={"training": config.candidates, "testing": max(config.candidates // 2, 1)},
            post_nms_top_n={"training": config.proposals, "testing": config.proposals},
            nms_thresh=0.7,
        )
        build = cascade_heads if config.heads == "cascade" else mask_rcnn_heads
        self.rcnn = GeneralizedRCNN(pyramid, rpn, build(pyramid, config, classes + 1), Frame(pyramid.reductions[-1]))

    def forward(self, images: Tensor, sizes: Tensor, targets: Targets | None = None) -> dict[str, Tensor] | Targets:
        pictures = [image[:, :height, :width] for image, (height, width) in zip(images, sizes.tolist(), strict=True)]
        return self.rcnn(pictures, targets)


def mask_rcnn_heads(pyramid: Pyramid, config: DetectConfig, classes: int) -> nn.Module:
    """torchvision's own: two fully connected layers for boxes, four convolutions for masks."""
    masks = mask_head(config, classes) if config.masks else (None, None)
    return RoIHeads(
        make_pool(pyramid, BOX_SIZE),
        TwoMLPHead(config.channels * BOX_SIZE**2, config.hidden),
        FullPrecision(FastRCNNPredictor(config.hidden, classes)),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        batch_size_per_image=config.rois,
        positive_fraction=0.25,
        bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
        score_thresh=config.score,
        nms_thresh=config.overlap,
        detections_per_img=config.detections,
        mask_roi_pool=make_pool(pyramid, MASK_SIZE) if config.masks else None,
        mask_head=masks[0],
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
