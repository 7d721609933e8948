"""Settings of detectors and segmenters: the `detect.*` and `segment.*` keys of every recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepsnet.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DetectConfig:
    """Mask R-CNN or Cascade Mask R-CNN over a feature pyramid. The defaults are those of Table 2."""

    heads: Literal["mask_rcnn", "cascade"] = "mask_rcnn"
    """Mask R-CNN, or Cascade Mask R-CNN with three box heads."""
    masks: bool = True
    """False: boxes only, for data without masks."""
    channels: int = 256
    """Width of the feature pyramid and of the convolutions in the heads."""
    hidden: int = 1024
    """Width of the fully connected layers of the box heads."""
    mask_convs: int = 4
    """Convolutions of the mask head."""
    norm: Literal["batch", "sync", "group"] = "batch"
    """The norm in the cascade's box heads. `sync` shares batch statistics between the processes of a GPU run; `group`
    needs no batch statistics, which suits few images per process."""
    anchor_scale: float = 8.0
    """The side of a square anchor, in strides of its map: 8 gives 32 to 512 pixels on maps of 1/4 to 1/64."""
    rois: int = 512
    """Regions sampled from each image for the box heads' loss, a quarter of them positive."""
    rpn_samples: int = 256
    """Anchors sampled from each image for the proposals' loss, half of them positive."""
    candidates: int = 2000
    """Proposals of each map before non-maximum suppression in training (half as many in evaluation)."""
    proposals: int = 1000
    """Proposals per image after non-maximum suppression."""
    detections: int = 100
    """Detections per image at most."""
    score: float = 0.05
    """Detections with a lower score are dropped."""
    overlap: float = 0.5
    """IoU threshold of non-maximum suppression: above it, only the better of two detections of a class is kept."""

    def __post_init__(self) -> None:
        for key in ("channels", "hidden", "mask_convs", "rois", "rpn_samples", "candidates", "proposals", "detections"):
            if getattr(self, key) < 1:
                raise UsageError(f"detect.{key} is {getattr(self, key)}, but must be at least 1.")
        if self.anchor_scale <= 0:
            raise UsageError(f"detect.anchor_scale is {self.anchor_scale}, but must be above 0.")
        for key in ("score", "overlap"):
            if not 0 <= getattr(self, key) <= 1:
                raise UsageError(f"detect.{key} is {getattr(self, key)}, but must be between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class SegmentConfig:
    """UPerNet. The defaults are those of Table 3."""

    channels: int = 512
    """Width of UPerNet's convolutions."""
    auxiliary_channels: int = 256
    """Width of the auxiliary head."""
    auxiliary_weight: float = 0.4
    """Weight of the auxiliary head's loss; 0: no auxiliary head."""
    norm: Literal["batch", "sync", "group"] = "batch"
    """The norm in the heads. `sync` shares batch statistics between the processes of a GPU run; `group` needs no batch
    statistics, which suits few images per process."""
    window: int = 0
    """Inference by a sliding window of this side; 0: the whole image at once."""
    stride: int = 0
    """Distance between two windows; 0: two thirds of the side."""
    scales: tuple[float, float, int] = (1.0, 1.0, 1)
    """Inference at several scales, averaged: smallest, largest, how many, evenly spaced (0.5,1.75,6 is usual)."""
    flip: bool = False
    """Inference on each image's mirror image too."""

    def __post_init__(self) -> None:
        for key in ("channels", "auxiliary_channels"):
            if getattr(self, key) < 1:
                raise UsageError(f"segment.{key} is {getattr(self, key)}, but must be at least 1.")
        if self.auxiliary_weight < 0:
            raise UsageError(f"segment.auxiliary_weight is {self.auxiliary_weight}, but cannot be negative.")
        if self.window < 0 or not 0 <= self.stride <= self.window:
            found = f"segment.window={self.window} and segment.stride={self.stride}"
            raise UsageError(f"{found}: the stride must be between 0 and the window's side.")
        smallest, largest, count = self.scales
        if not 0 < smallest <= largest or count < 1:
            raise UsageError(f"segment.scales is {self.scales}, but must be smallest scale, largest scale, how many.")
