"""Four maps of falling resolution from any backbone of the zoo, ready for a detector or a segmenter.

Legend: B pictures, C channels, H, W height and width of a map.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

BATCH_NORM_FAMILIES = ("resnet",)
"""Their maps are normalised and rectified; those of all other families are the bare residual stream, which grows with depth."""


class FeatureInfo(Protocol):
    def channels(self) -> list[int]: ...

    def reduction(self) -> list[int]: ...


class Backbone(Protocol):
    """What `create_model(name, features_only=True)` returns: a module from a picture (B, 3, H, W) to a list of maps."""

    @property
    def feature_info(self) -> Any: ...

    @property
    def default_cfg(self) -> dict[str, Any]: ...


def deepest_of_each_resolution(reductions: list[int]) -> list[int]:
    """Which of the maps to use: of those with the same resolution the last. A Vision Transformer has one resolution, so one map."""
    return [index for index, reduction in enumerate(reductions) if reduction not in reductions[index + 1 :]]


def group_norm(channels: int) -> nn.GroupNorm:
    """Group norm of at most 32 groups, each of two channels or more, so that a map of one pixel still has something to compare."""
    groups = max(groups for groups in range(1, min(32, max(channels // 2, 1)) + 1) if channels % groups == 0)
    return nn.GroupNorm(groups, channels)


class MapNorm(nn.LayerNorm):
    """Layer norm over the channels of a map (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Maps(nn.Module):
    """The backbone's maps, each behind a norm of its own, as in Swin's detectors. `frozen_norm` keeps its batch norms as they are."""

    def __init__(self, backbone: nn.Module, *, frozen_norm: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.frozen_norm = frozen_norm
        self.channels: list[int] = list(_info(backbone).channels())
        self.reductions: list[int] = list(_info(backbone).reduction())
        plain = _config(backbone).get("family") in BATCH_NORM_FAMILIES
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
    """Four resolutions from the one map of a Vision Transformer, by strided and transposed convolutions (ViTDet, arXiv 2203.16527)."""

    def __init__(self, backbone: nn.Module, *, frozen_norm: bool = False) -> None:
        super().__init__(backbone, frozen_norm=frozen_norm)
        (channels,), (reduction,) = self.channels, self.reductions
        half, quarter = channels // 2, channels // 4
        self.channels = [quarter, half, channels, channels]
        self.reductions = [reduction // 4, reduction // 2, reduction, reduction * 2]
        finest = nn.Sequential(
            nn.ConvTranspose2d(channels, half, 2, 2), MapNorm(half), nn.GELU(), nn.ConvTranspose2d(half, quarter, 2, 2)
        )
        self.levels = nn.ModuleList((finest, nn.ConvTranspose2d(channels, half, 2, 2), nn.Identity(), nn.MaxPool2d(2, 2)))

    def forward(self, images: Tensor) -> list[Tensor]:
        (features,) = super().forward(images)
        return [level(features) for level in self.levels]


def make_maps(backbone: nn.Module, *, frozen_norm: bool = False) -> Maps:
    """The maps of a backbone, whatever its family."""
    kind = SpreadMaps if len(_info(backbone).channels()) == 1 else Maps
    return kind(backbone, frozen_norm=frozen_norm)


def _info(backbone: Any) -> FeatureInfo:
    return backbone.feature_info


def _config(backbone: Any) -> dict[str, Any]:
    return backbone.default_cfg
