"""The detector's settings: the `detect.*` keys of every recipe. The defaults are those of Table 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepsnet.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DetectConfig:
    """Mask R-CNN or Cascade Mask R-CNN over a feature pyramid."""

    heads: Literal["mask_rcnn", "cascade"] = "mask_rcnn"
    masks: bool = True
    """False: boxes only, for data without masks."""
    channels: int = 256
    """Width of the feature pyramid and of the convolutions in the heads."""
    hidden: int = 1024
    """Width of the fully connected layers of the box heads."""
    mask_convs: int = 4
    norm: Literal["batch", "sync", "group"] = "batch"
    """The norm in the cascade's box heads. `sync` shares statistics between the processes of a GPU run; where processes share none
    and hold few pictures each, `group` needs none."""
    anchor_scale: float = 8.0
    """The side of a square anchor, in steps of its map: 8 gives 32 to 512 pixels on maps of 1/4 to 1/64."""
    rois: int = 512
    """Regions sampled from each picture for the box heads' loss, a quarter of them positive."""
    rpn_samples: int = 256
    """Anchors sampled from each picture for the proposals' loss, half of them positive."""
    candidates: int = 2000
    """Proposals of each map before non-maximum suppression in training (half as many in evaluation)."""
    proposals: int = 1000
    """Proposals a picture after it."""
    detections: int = 100
    """Detections a picture at most."""
    score: float = 0.05
    """Detections with a smaller score are left out."""
    overlap: float = 0.5
    """Of two detections of a class that overlap more, the better one stays."""

    def __post_init__(self) -> None:
        for key in ("channels", "hidden", "mask_convs", "rois", "rpn_samples", "candidates", "proposals", "detections"):
            if getattr(self, key) < 1:
                raise UsageError(f"detect.{key} is {getattr(self, key)}, but must be at least 1.")
        if self.anchor_scale <= 0:
            raise UsageError(f"detect.anchor_scale is {self.anchor_scale}, but must be above 0.")
        for key in ("score", "overlap"):
            if not 0 <= getattr(self, key) <= 1:
                raise UsageError(f"detect.{key} is {getattr(self, key)}, but lies between 0 and 1.")
