"""What a detector costs: the multiply-accumulates of one picture, part by part, by the convention of Table 2.

Everything is run on the meta device: backbone and pyramid on the whole picture, the proposals' head on all maps, the box heads on
`proposals` regions (1,000; a cascade's three stages on as many each) and the mask heads on `detections` regions (100; a cascade's three
each). Pooling of regions, non-maximum suppression and pasting of masks multiply next to nothing and are not counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stepsnet.cost import count_macs
from stepsnet.dense.cascade import CascadeRoIHeads
from stepsnet.dense.detector import BOX_SIZE, MASK_SIZE, Detector


def detector_macs(detector: Detector, height: int, width: int, *, proposals: int = 1000, detections: int = 100) -> dict[str, int]:
    """MACs of backbone with pyramid, proposals' head, box heads and mask heads."""
    pyramid, heads = detector.rcnn.backbone, detector.rcnn.roi_heads
    channels = pyramid.out_channels
    maps = [
        torch.empty(1, channels, -(-height // reduction), -(-width // reduction), device="meta") for reduction in pyramid.reductions
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
    """Box heads and mask heads of torchvision's RoI heads or of the cascade's."""
    if isinstance(heads, CascadeRoIHeads):
        return list(heads.box_heads), list(heads.mask_heads)
    masks: list[nn.Module] = [nn.Sequential(heads.mask_head, heads.mask_predictor)] if heads.has_mask() else []
    return [nn.Sequential(heads.box_head, heads.box_predictor)], masks
