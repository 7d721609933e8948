"""What vision models offer: the face timm users know, and the backbone made from it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from stepsnet.blocks.layers import linear
from stepsnet.errors import UsageError
from stepsnet.models.model import Model

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Feature:
    """One of the maps a backbone offers: where it comes from, its channels, and how many pixels of the picture one step of it spans."""

    module: str
    num_chs: int
    reduction: int


class FeatureInfo(list[dict[str, Any]]):
    """One dict a feature map, with timm's two questions about all of them."""

    @classmethod
    def of(cls, features: Iterable[Feature]) -> FeatureInfo:
        return cls({**asdict(feature), "index": index} for index, feature in enumerate(features))

    def channels(self) -> list[int]:
        return [info["num_chs"] for info in self]

    def reduction(self) -> list[int]:
        return [info["reduction"] for info in self]


class VisionModel(Model):
    """A picture classifier that is also a backbone. Families provide the stem, the stages and the costs."""

    feature_info: FeatureInfo
    num_classes: int
    global_pool: str
    head: nn.Module
    pools: tuple[str, ...] = ("avg", "max", "")

    @abstractmethod
    def intermediates(self, x: Tensor, indices: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The last map, normalised, and the wanted ones on the way to it, these as (B, C, H, W); indices count `feature_info`."""

    @abstractmethod
    def pool(self, x: Tensor) -> Tensor:
        """One vector a picture from the last map, as `global_pool` says."""

    @abstractmethod
    def cut_after(self, feature: int) -> None:
        """Remove every part behind a feature map, for backbones that do not look further."""

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.intermediates(x, ())[0])

    def forward_features(self, x: Tensor) -> Tensor:
        return self.intermediates(x, ())[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.pool(x)
        return x if pre_logits else self.head(x)

    @overload
    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, *, intermediates_only: Literal[False] = False
    ) -> tuple[Tensor, list[Tensor]]: ...
    @overload
    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, *, intermediates_only: Literal[True]
    ) -> list[Tensor]: ...
    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, *, intermediates_only: bool = False
    ) -> tuple[Tensor, list[Tensor]] | list[Tensor]:
        """Timm's call: the last map and a list of maps (B, C, H, W), or the list alone.

        `indices` count `feature_info`; a number means that many of the last, None means all.
        """
        last, maps = self.intermediates(x, self.check_indices(indices))
        return maps if intermediates_only else (last, maps)

    def check_indices(self, indices: int | Sequence[int] | None) -> list[int]:
        count = len(self.feature_info)
        chosen = range(count) if indices is None else range(count - indices, count) if isinstance(indices, int) else indices
        wanted = [index + count if index < 0 and not isinstance(indices, int) else index for index in chosen]
        if any(not 0 <= index < count for index in wanted) or wanted != sorted(set(wanted)):
            raise UsageError(f"out_indices {list(chosen)} must name growing features among 0 … {count - 1} of {type(self).__name__}")
        return wanted

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for other classes; with 0 classes the model returns its pooled features."""
        pool = self.global_pool if global_pool is None else global_pool
        if pool not in self.pools:
            raise UsageError(f"{type(self).__name__} pools by {', '.join(repr(p) for p in self.pools)}, not by {pool!r}")
        if num_classes < 0 or (num_classes and not pool):
            raise UsageError(f"{num_classes} classes with global_pool={pool!r}: a classifier needs a pool; without one, num_classes=0")
        self.global_pool = pool
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = linear(self.num_features, num_classes, device=like.device, dtype=like.dtype) if num_classes else nn.Identity()

    def cfg(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "bicubic"}

    def changed_options(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "global_pool": self.global_pool}

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.empty(1, *(input_size or self.input_size), device="meta")


class FeatureBackbone(nn.Module):
    """`features_only`: a picture in, a list of maps (B, C, H, W) out, for detection and segmentation. Nothing unused stays in it."""

    def __init__(self, model: VisionModel, out_indices: Sequence[int] | int | None = None) -> None:
        super().__init__()
        self.out_indices = model.check_indices(out_indices)
        self.feature_info = FeatureInfo(model.feature_info[index] for index in self.out_indices)
        self.default_cfg = model.default_cfg
        model.reset_classifier(0)
        model.cut_after(self.out_indices[-1])
        self.model = model

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.model.intermediates(x, self.out_indices)[1]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.model.set_grad_checkpointing(enable)
