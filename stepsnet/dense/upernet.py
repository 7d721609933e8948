"""Semantic segmentation: transformers' UPerNet (arXiv 1807.10221) over the maps of any backbone.

Legend: B images, K classes, H, W height and width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.cost import count_macs
from stepsnet.data.dense.masks import VOID
from stepsnet.dense.config import SegmentConfig
from stepsnet.dense.maps import Maps, group_norm
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision_if_installed

transformers: Any = require("transformers", extra="transformers")
import_torchvision_if_installed()

from transformers import PreTrainedConfig, PreTrainedModel  # noqa: E402
from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin  # noqa: E402
from transformers.modeling_outputs import BackboneOutput  # noqa: E402


class Segmenter(nn.Module):
    """Images (B, 3, H, W) in; probabilities (B, K, H, W) out, or with labels (B, H, W) the loss."""

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
        images, labels = self.padded(images, 0.0), self.padded(labels, VOID)
        features = self.upernet.backbone(images).feature_maps
        logits = self.upernet.decode_head(features)
        loss = _cross_entropy(logits, labels)
        if self.upernet.auxiliary_head is not None:
            loss = loss + self.config.auxiliary_weight * _cross_entropy(self.upernet.auxiliary_head(features), labels)
        return loss

    def logits(self, images: Tensor) -> Tensor:
        """(B, K, H, W), from the main head only."""
        padded = self.padded(images, 0.0)
        logits = self.upernet.decode_head(self.upernet.backbone(padded).feature_maps)
        logits = F.interpolate(logits.float(), size=padded.shape[2:], mode="bilinear", align_corners=False)
        return logits[:, :, : images.shape[2], : images.shape[3]]

    def padded(self, pixels: Tensor, filling: float) -> Tensor:
        """(…, H, W) padded to sides that every map divides, so that maps align with the image."""
        coarsest = self.upernet.backbone.steps[-1]
        down, right = (-side % coarsest for side in pixels.shape[-2:])
        return F.pad(pixels, (0, right, 0, down), value=filling) if down or right else pixels

    def predict(self, images: Tensor) -> Tensor:
        """Probabilities (B, K, H, W), averaged over the configured scales, mirror images and windows."""
        smallest, largest, count = self.config.scales
        factors = torch.linspace(smallest, largest, count).tolist()
        total = images.new_zeros(())
        views = [
            (factor, flipped) for factor in factors for flipped in ((False, True) if self.config.flip else (False,))
        ]
        for factor, flipped in views:
            size = [max(1, round(side * factor)) for side in images.shape[2:]]
            seen = images if factor == 1 else F.interpolate(images, size=size, mode="bilinear", align_corners=False)
            found = self.windows(seen.flip(3) if flipped else seen)
            found = found.flip(3) if flipped else found
            total = total + F.interpolate(found, size=images.shape[2:], mode="bilinear", align_corners=False)
        return total / len(views)

    def windows(self, images: Tensor) -> Tensor:
        """Probabilities at one scale: of the whole image, or the mean over the windows that contain a pixel."""
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
        """MACs of one image by part: backbone and both heads, as in Table 3. Interpolation is not counted."""
        backbone = self.upernet.backbone
        features = [
            torch.empty(1, channels, -(-height // step), -(-width // step), device="meta")
            for channels, step in zip(backbone.channels, backbone.steps, strict=True)
        ]
        heads = {"decoder": self.upernet.decode_head, "auxiliary head": self.upernet.auxiliary_head}
        counted = {"backbone": count_macs(backbone.maps, torch.empty(1, 3, height, width, device="meta"))}
        return counted | {name: count_macs(head, features) for name, head in heads.items() if head is not None}


def _starts(length: int, side: int, stride: int) -> list[int]:
    """Start positions of windows that cover the length; the last one ends exactly at its end."""
    last = max(length - side, 0)
    return sorted({*range(0, last, stride), last})


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over images of the mean over their pixels that are not void. An image that is all void counts as 0.

    Every image has the same weight, so that the gradient does not depend on how a batch is split over processes.
    """
    logits = F.interpolate(logits.float(), size=labels.shape[1:], mode="bilinear", align_corners=False)
    losses = F.cross_entropy(logits, labels, ignore_index=VOID, reduction="none")
    return (losses.sum(dim=(1, 2)) / (labels != VOID).sum(dim=(1, 2)).clamp(min=1)).mean()


class SingleValueBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that uses its running statistics when a batch has one value per channel, where torch's fails.

    UPerNet pools its last map to one pixel, which is one value with one image per process.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() // x.shape[1] < 2:
            assert self.running_mean is not None
            assert self.running_var is not None
            return F.batch_norm(
                x, self.running_mean.clone(), self.running_var.clone(), self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(x)


def replace_norms(module: nn.Module, kind: str) -> None:
    """Replace every batch norm below `module` by the norm of this kind."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "batch": SingleValueBatchNorm2d,
        "sync": nn.SyncBatchNorm,
        "group": group_norm,
    }
    found = [(parent, name, child) for parent in module.modules() for name, child in parent.named_children()]
    for parent, name, child in found:
        if isinstance(child, nn.BatchNorm2d):
            setattr(parent, name, norms[kind](child.num_features))


def build_upernet(maps: Maps, config: SegmentConfig, classes: int) -> Any:
    """transformers' UPerNet with `maps` as its backbone."""
    architecture = getattr(maps.backbone, "default_cfg", {}).get("architecture", "")
    settings = transformers.UperNetConfig(
        backbone_config=StepsNetBackboneConfig(architecture, maps.channels, maps.reductions),
        hidden_size=config.channels, auxiliary_channels=config.auxiliary_channels, num_labels=classes,
        use_auxiliary_head=config.auxiliary_weight > 0, auxiliary_loss_weight=config.auxiliary_weight,
        loss_ignore_index=VOID,
    )  # fmt: skip
    upernet = transformers.UperNetForSemanticSegmentation(settings)
    upernet.backbone.maps = maps
    return upernet


class StepsNetBackboneConfig(BackboneConfigMixin, PreTrainedConfig):
    """The name of the model, the channels of its maps, and their strides in pixels."""

    model_type = "stepsnet_backbone"

    def __init__(
        self, architecture: str = "", channels: list[int] | None = None, steps: list[int] | None = None, **options: Any
    ) -> None:
        self.architecture = architecture
        self.map_channels = list(channels or [])
        self.steps = list(steps or [])
        self.stage_names = [f"stage{index + 1}" for index in range(len(self.map_channels))]
        super().__init__(**options)
        self.set_output_features_output_indices(list(self.stage_names), None)


class StepsNetBackbone(BackboneMixin, PreTrainedModel):
    """Backbone for transformers' heads, registered with `AutoBackbone`. `maps` is set after construction."""

    config_class = StepsNetBackboneConfig
    main_input_name = "pixel_values"
    has_attentions = False
    maps: nn.Module

    def __init__(self, config: StepsNetBackboneConfig) -> None:
        super().__init__(config)
        self.num_features = list(config.map_channels)
        self.steps = list(config.steps)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: our modules initialise themselves."""

    def forward(
        self,
        pixel_values: Tensor,
        output_hidden_states: bool | None = None,  # noqa: ARG002  (the library's signature)
        output_attentions: bool | None = None,  # noqa: ARG002
        return_dict: bool | None = None,  # noqa: ARG002
    ) -> BackboneOutput:
        return BackboneOutput(feature_maps=tuple(self.maps(pixel_values)))


transformers.AutoConfig.register(StepsNetBackboneConfig.model_type, StepsNetBackboneConfig, exist_ok=True)
transformers.AutoBackbone.register(StepsNetBackboneConfig, StepsNetBackbone, exist_ok=True)
