"""VisionModel, with the interface that timm's models have, and FeatureBackbone, which is made from one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from stepsnet.blocks.layers import linear
from stepsnet.errors import UsageError
from stepsnet.models.model import Model

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class FeatureInfo(list[dict[str, Any]]):
    """One dict per feature map, as in timm: `module`, `num_chs`, `reduction` (its stride in pixels) and `index`."""

    @classmethod
    def of(cls, features: Iterable[tuple[str, int, int]]) -> FeatureInfo:
        keys = ("module", "num_chs", "reduction")
        return cls({**dict(zip(keys, feature, strict=True)), "index": index} for index, feature in enumerate(features))

    def channels(self) -> list[int]:
        return [info["num_chs"] for info in self]

    def reduction(self) -> list[int]:
        return [info["reduction"] for info in self]


class VisionModel(Model):
    """An image classifier that is also a backbone. Families implement the abstract methods."""

    feature_info: FeatureInfo
    num_classes: int
    global_pool: str
    head: nn.Module
    pools: tuple[str, ...] = ("avg", "max", "")

    @abstractmethod
    def intermediates(self, x: Tensor, indices: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """The last map after its norm, and the maps of `feature_info` at `indices` as (B, C, H, W)."""

    @abstractmethod
    def pool(self, x: Tensor) -> Tensor:
        """One vector per image from the last map, by `global_pool`."""

    @abstractmethod
    def cut_after(self, feature: int) -> None:
        """Remove all modules after a feature map, for backbones that do not need them."""

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
        """The last map and a list of maps (B, C, H, W), or only the list, as in timm.

        `indices` are positions in `feature_info`. A number n selects the last n maps, None all.
        """
        last, maps = self.intermediates(x, self.check_indices(indices))
        return maps if intermediates_only else (last, maps)

    def check_indices(self, indices: int | Sequence[int] | None) -> list[int]:
        count = len(self.feature_info)
        chosen = (
            range(count) if indices is None else range(count - indices, count) if isinstance(indices, int) else indices
        )
        wanted = [index + count if index < 0 and not isinstance(indices, int) else index for index in chosen]
        if any(not 0 <= index < count for index in wanted) or wanted != sorted(set(wanted)):
            maps = f"the feature maps of {type(self).__name__}"
            raise UsageError(f"out_indices {list(chosen)} must be growing indices from 0 to {count - 1}, {maps}")
        return wanted

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head. With 0 classes the model returns its pooled features."""
        pool = self.global_pool if global_pool is None else global_pool
        if pool not in self.pools:
            raise UsageError(
                f"{type(self).__name__} pools by {', '.join(repr(p) for p in self.pools)}, not by {pool!r}"
            )
        if num_classes < 0 or (num_classes and not pool):
            why = "a classifier needs a pool; without a pool, give num_classes=0"
            raise UsageError(f"{num_classes} classes with global_pool={pool!r}: {why}")
        self.global_pool = pool
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = (
            linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            if num_classes
            else nn.Identity()
        )

    def cfg(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "bicubic"}

    def changed_options(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "global_pool": self.global_pool}

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.empty(1, *(input_size or self.input_size), dtype=next(self.parameters()).dtype, device="meta")


class FeatureBackbone(nn.Module):
    """`features_only`: images in, a list of maps (B, C, H, W) out. Modules that no map needs are removed."""

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
