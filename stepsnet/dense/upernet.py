"""Semantic segmentation: transformers' UPerNet (arXiv 1807.10221) over the maps of any backbone of the zoo.

Legend: B pictures, K classes, H, W height and width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.cost import count_macs
from stepsnet.dense.maps import Maps, group_norm
from stepsnet.errors import UsageError
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision_if_installed

VOID = 255
"""The label of pixels that are neither learned nor judged."""


@dataclass(frozen=True, kw_only=True)
class SegmentConfig:
    """The segmenter's settings: the `segment.*` keys of every recipe. The defaults are those of Table 3."""

    channels: int = 512
    auxiliary_channels: int = 256
    auxiliary_weight: float = 0.4
    """Weight of the auxiliary head's loss; 0: no auxiliary head."""
    norm: Literal["batch", "sync", "group"] = "batch"
    """`sync` shares statistics between the processes of a GPU run; where processes share none and hold few pictures each, `group`
    needs none."""
    window: int = 0
    """Inference by a sliding window of this side; 0: the whole picture at once."""
    stride: int = 0
    """How far the window slides; 0: two thirds of its side."""
    scales: tuple[float, float, int] = (1.0, 1.0, 1)
    """Inference at several scales: the smallest, the largest, and how many, evenly spaced (0.5,1.75,6 is usual); the mean counts."""
    flip: bool = False
    """Inference on each picture's mirror image too."""

    def __post_init__(self) -> None:
        for key in ("channels", "auxiliary_channels"):
            if getattr(self, key) < 1:
                raise UsageError(f"segment.{key} is {getattr(self, key)}, but must be at least 1.")
        if self.auxiliary_weight < 0:
            raise UsageError(f"segment.auxiliary_weight is {self.auxiliary_weight}, but cannot be negative.")
        if self.window < 0 or not 0 <= self.stride <= self.window:
            raise UsageError(f"segment.window={self.window} and segment.stride={self.stride}: a window slides by at most its side.")
        smallest, largest, count = self.scales
        if not 0 < smallest <= largest or count < 1:
            raise UsageError(f"segment.scales is {self.scales}, but is a smallest and a largest factor and how many there are.")


class Segmenter(nn.Module):
    """Pictures (B, 3, H, W) in; logits (B, K, H, W) out, and in training the loss against labels (B, H, W)."""

    def __init__(self, maps: Maps, config: SegmentConfig, classes: int) -> None:
        super().__init__()
        self.config = config
        self.upernet = build_upernet(maps, config, classes)
        replace_norms(self.upernet.decode_head, config.norm)
        if self.upernet.auxiliary_head is not None:
            replace_norms(self.upernet.auxiliary_head, config.norm)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            return self.predict(images)
        images, labels = self.framed(images, 0.0), self.framed(labels, VOID)
        features = self.upernet.backbone(images).feature_maps
        logits = self.upernet.decode_head(features)
        loss = _cross_entropy(logits, labels)
        if self.upernet.auxiliary_head is not None:
            loss = loss + self.config.auxiliary_weight * _cross_entropy(self.upernet.auxiliary_head(features), labels)
        return loss

    def logits(self, images: Tensor) -> Tensor:
        """(B, K, H, W), from the main head alone."""
        framed = self.framed(images, 0.0)
        logits = self.upernet.decode_head(self.upernet.backbone(framed).feature_maps)
        logits = F.interpolate(logits.float(), size=framed.shape[2:], mode="bilinear", align_corners=False)
        return logits[:, :, : images.shape[2], : images.shape[3]]

    def framed(self, pixels: Tensor, filling: float) -> Tensor:
        """(…, H, W) with sides that every map divides, or maps would not lie exactly over the picture."""
        coarsest = self.upernet.backbone.steps[-1]
        down, right = (-side % coarsest for side in pixels.shape[-2:])
        return F.pad(pixels, (0, right, 0, down), value=filling) if down or right else pixels

    def predict(self, images: Tensor) -> Tensor:
        """Probabilities (B, K, H, W), averaged over scales, mirror images and windows as the settings say."""
        smallest, largest, count = self.config.scales
        factors = torch.linspace(smallest, largest, count).tolist()
        total = images.new_zeros(())
        views = [(factor, flipped) for factor in factors for flipped in ((False, True) if self.config.flip else (False,))]
        for factor, flipped in views:
            size = [max(1, round(side * factor)) for side in images.shape[2:]]
            seen = images if factor == 1 else F.interpolate(images, size=size, mode="bilinear", align_corners=False)
            found = self.windows(seen.flip(3) if flipped else seen)
            found = found.flip(3) if flipped else found
            total = total + F.interpolate(found, size=images.shape[2:], mode="bilinear", align_corners=False)
        return total / len(views)

    def windows(self, images: Tensor) -> Tensor:
        """Probabilities at one scale: of the whole picture, or the mean over all windows that contain a pixel."""
        side, (height, width) = self.config.window, images.shape[2:]
        if side == 0 or (height <= side and width <= side):
            return self.logits(images).softmax(dim=1)
        stride = self.config.stride or max(1, side * 2 // 3)
        rows, columns = _starts(height, side, stride), _starts(width, side, stride)
        total, seen = images.new_zeros(()), images.new_zeros(1, 1, height, width)
        for top in rows:
            for left in columns:
                part = images[:, :, top : top + side, left : left + side]
                found = self.logits(part).softmax(dim=1)
                if total.ndim == 0:
                    total = found.new_zeros(*found.shape[:2], height, width)
                total[:, :, top : top + side, left : left + side] += found
                seen[:, :, top : top + side, left : left + side] += 1
        return total / seen

    def macs(self, height: int, width: int) -> dict[str, int]:
        """Multiply-accumulates of one picture: backbone and both heads, as Table 3 counts them. Interpolation is not counted."""
        backbone = self.upernet.backbone
        features = [
            torch.empty(1, channels, -(-height // step), -(-width // step), device="meta")
            for channels, step in zip(backbone.channels, backbone.steps, strict=True)
        ]
        heads = {"decoder": self.upernet.decode_head, "auxiliary head": self.upernet.auxiliary_head}
        counted = {"backbone": count_macs(backbone.maps, torch.empty(1, 3, height, width, device="meta"))}
        return counted | {name: count_macs(head, features) for name, head in heads.items() if head is not None}


def _starts(length: int, side: int, stride: int) -> list[int]:
    """Where windows begin so that they cover the length, the last one flush with its end."""
    last = max(length - side, 0)
    return sorted({*range(0, last, stride), last})


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over pictures of the mean over a picture's pixels that are not void; zero, with a gradient of zero, where all are.

    Every picture weighs the same, so that the gradient does not depend on how a batch is cut or spread over processes.
    """
    logits = F.interpolate(logits.float(), size=labels.shape[1:], mode="bilinear", align_corners=False)
    losses = F.cross_entropy(logits, labels, ignore_index=VOID, reduction="none")
    return (losses.sum(dim=(1, 2)) / (labels != VOID).sum(dim=(1, 2)).clamp(min=1)).mean()


class PatientBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that, where a batch has one value a channel and so no variance, takes its running statistics instead of failing.

    UPerNet pools its last map to one pixel; with one picture a process that is one value.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() // x.shape[1] < 2:
            assert self.running_mean is not None
            assert self.running_var is not None
            return F.batch_norm(x, self.running_mean.clone(), self.running_var.clone(), self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


def replace_norms(module: nn.Module, kind: str) -> None:
    """Put the wanted norm in the place of every batch norm below `module`."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "batch": PatientBatchNorm2d,
        "sync": nn.SyncBatchNorm,
        "group": group_norm,
    }
    found = [(parent, name, child) for parent in module.modules() for name, child in parent.named_children()]
    for parent, name, child in found:
        if isinstance(child, nn.BatchNorm2d):
            setattr(parent, name, norms[kind](child.num_features))


def build_upernet(maps: Maps, config: SegmentConfig, classes: int) -> Any:
    """transformers' model: its own heads, and our maps in the place of its backbone."""
    import_torchvision_if_installed()
    transformers = require("transformers", extra="transformers")
    from stepsnet.dense.upernet_backbone import StepsNetBackboneConfig

    architecture = getattr(maps.backbone, "default_cfg", {}).get("architecture", "")
    settings = transformers.UperNetConfig(
        backbone_config=StepsNetBackboneConfig(architecture, maps.channels, maps.reductions),
        hidden_size=config.channels, auxiliary_channels=config.auxiliary_channels, num_labels=classes,
        use_auxiliary_head=config.auxiliary_weight > 0, auxiliary_loss_weight=config.auxiliary_weight, loss_ignore_index=VOID,
    )  # fmt: skip
    upernet = transformers.UperNetForSemanticSegmentation(settings)
    upernet.backbone.maps = maps
    return upernet
