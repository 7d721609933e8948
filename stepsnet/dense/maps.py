"""Feature maps of falling resolution from any backbone of the zoo, for detectors and segmenters.

Legend: B images, C channels, H, W height and width of a map.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stepsnet.models import VisionModel

BATCH_NORM_FAMILIES = ("resnet",)
"""Their maps are normalised. Maps of other families are the bare residual stream, which grows with depth."""


def deepest_of_each_resolution(model: VisionModel) -> list[int]:
    """Indices of the maps to use: the last of each resolution after the stem.

    A Vision Transformer has one resolution, so one map.
    """
    reductions, modules = model.feature_info.reduction(), model.feature_info.module_name()
    return [
        index
        for index, reduction in enumerate(reductions)
        if reduction not in reductions[index + 1 :] and not modules[index].startswith(model.stem_names())
    ]


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm of at most 32 groups with at least two channels each, so that a map of one pixel has a variance."""
    groups = max(groups for groups in range(1, min(32, max(channels // 2, 1)) + 1) if channels % groups == 0)
    return nn.GroupNorm(groups, channels)


class MapNorm(nn.LayerNorm):
    """Layer norm over the channels of a map (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Maps(nn.Module):
    """The maps of `create_model(name, features_only=True)`, each with its own norm, as in Swin's detectors.

    `frozen_norm` keeps the backbone's batch norms in evaluation mode.
    """

    def __init__(self, backbone: nn.Module, *, frozen_norm: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.frozen_norm = frozen_norm
        made: Any = backbone
        self.channels: list[int] = list(made.feature_info.channels())
        self.reductions: list[int] = list(made.feature_info.reduction())
        plain = made.default_cfg.get("family") in BATCH_NORM_FAMILIES
        self.norms = nn.ModuleList(nn.Identity() if plain else MapNorm(channels) for channels in self.channels)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [norm(features) for norm, features in zip(self.norms, self.backbone(images), strict=True)]

    def train(self, mode: bool = True) -> Maps:
        super().train(mode)
        if self.frozen_norm:
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


class SpreadMaps(Maps):
    """Four resolutions from the one map of a Vision Transformer: transposed convolutions, pooling (2203.16527)."""

    def __init__(self, backbone: nn.Module, *, frozen_norm: bool = False) -> None:
        super().__init__(backbone, frozen_norm=frozen_norm)
        (channels,), (reduction,) = self.channels, self.reductions
        half, quarter = channels // 2, channels // 4
        self.channels = [quarter, half, channels, channels]
        self.reductions = [reduction // 4, reduction // 2, reduction, reduction * 2]
        finest = nn.Sequential(
            nn.ConvTranspose2d(channels, half, 2, 2), MapNorm(half), nn.GELU(), nn.ConvTranspose2d(half, quarter, 2, 2)
        )
        finer = nn.ConvTranspose2d(channels, half, 2, 2)
        self.levels = nn.ModuleList((finest, finer, nn.Identity(), nn.MaxPool2d(2, 2)))

    def forward(self, images: Tensor) -> list[Tensor]:
        (features,) = super().forward(images)
        return [level(features) for level in self.levels]


def make_maps(backbone: nn.Module, *, frozen_norm: bool = False) -> Maps:
    """`SpreadMaps` for a backbone with one map, `Maps` for all others."""
    made: Any = backbone
    kind = SpreadMaps if len(made.feature_info.channels()) == 1 else Maps
    return kind(backbone, frozen_norm=frozen_norm)
