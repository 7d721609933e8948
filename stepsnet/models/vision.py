"""VisionModel, with the interface that timm's models have, and FeatureBackbone, which is made from one."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.layers import linear
from stepsnet.errors import UsageError
from stepsnet.models.design import image_sides
from stepsnet.models.model import Model, layer_prefixes

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "NCHW": lambda x: x,
    "NHWC": lambda x: x.permute(0, 2, 3, 1),
    "NLC": lambda x: x.flatten(2).transpose(1, 2),
}
"""From a map (B, C, H, W) to timm's `output_fmt`."""


STEM = -1
"""The position of the map before the first block, which is in no `feature_info`; for `intermediates`."""


def take_stem(x: Tensor, indices: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """`x` (B, H, W, C), and its map if `indices` has STEM. What is computed from `x` then depends on that map."""
    if STEM not in indices:
        return x, []
    stem = x.movedim(-1, 1)
    return stem.movedim(1, -1), [stem]


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

    def module_name(self) -> list[str]:
        return [info["module"] for info in self]

    def get_dicts(self, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
        return [{key: info[key] for key in keys or info} for info in self]


class VisionModel(Model):
    """An image classifier that is also a backbone. Families implement the abstract methods.

    `output_fmt` is the format of `forward_features`: "NCHW", "NHWC" or "NLC". `first_conv` is the name of the
    convolution that sees the image. `last_maps` is how many maps `features_only` returns by default; None: all.
    `pretrained_cfg` is what timm reads, and writes to config.json: `default_cfg` without family and options.
    """

    feature_info: FeatureInfo
    num_classes: int
    global_pool: str
    head: nn.Module
    norm: nn.Module
    drop_rate: float
    pools: tuple[str, ...] = ("avg", "max", "")
    output_fmt = "NCHW"
    first_conv: str
    last_maps: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_cfg: dict[str, Any] = {}

    @abstractmethod
    def intermediates(
        self, x: Tensor, indices: Sequence[int], *, norm: bool = False, stop_early: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """The last map after its norm, and the maps of `feature_info` at `indices` as (B, C, H, W).

        STEM among the `indices` is the map before the first block. With `norm`, maps that the last norm fits are
        normalised. With `stop_early`, the last of `indices` is the last map.
        """

    @abstractmethod
    def pool(self, x: Tensor) -> Tensor:
        """One vector per image from the last map, by `global_pool`."""

    @abstractmethod
    def cut_after(self, feature: int) -> None:
        """Remove the blocks after a feature map, for backbones that do not need them."""

    def forward(self, x: Tensor) -> Tensor:
        """The logits (B, num_classes) of images (B, C, H, W). Our families write it out, from image to head."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        return self.intermediates(x, ())[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.pool(x)
        if self.drop_rate:
            x = F.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.head(x)

    @overload
    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        *,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: Literal[False] = False,
    ) -> tuple[Tensor, list[Tensor]]: ...
    @overload
    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        *,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: Literal[True],
    ) -> list[Tensor]: ...
    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        *,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> tuple[Tensor, list[Tensor]] | list[Tensor]:
        """The last map and a list of maps, or only the list, as in timm.

        `indices` are positions in `feature_info`. A number n selects the last n maps, None all. `norm` applies the
        last norm to the maps that it fits: all of DeiT, the last of Swin, none of ResNet. `stop_early` skips the blocks
        after the last map. `output_fmt` is "NCHW", "NHWC" or "NLC".
        """
        if output_fmt not in FORMATS:
            raise UsageError(f"output_fmt is one of {', '.join(FORMATS)}, not {output_fmt!r}")
        last, maps = self.intermediates(x, self.check_indices(indices), norm=norm, stop_early=stop_early)
        maps = [FORMATS[output_fmt](found) for found in maps]
        return maps if intermediates_only else (last, maps)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] | None = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what the maps at `indices` do not need, as in timm. Returns the indices as positive numbers."""
        kept = self.check_indices(indices)
        self.cut_after(kept[-1])
        del self.feature_info[kept[-1] + 1 :]
        if prune_norm and hasattr(self, "norm"):
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return kept

    def check_indices(self, indices: int | Sequence[int] | None) -> list[int]:
        count = len(self.feature_info)
        chosen = (
            range(count) if indices is None else range(count - indices, count) if isinstance(indices, int) else indices
        )
        wanted = [index + count if index < 0 and not isinstance(indices, int) else index for index in chosen]
        if not wanted or any(not 0 <= index < count for index in wanted) or wanted != sorted(set(wanted)):
            maps = f"the feature maps of {type(self).__name__}"
            raise UsageError(f"out_indices {list(chosen)} must be growing indices from 0 to {count - 1}, {maps}")
        return wanted

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Regular expressions that group parameters for timm's layer decay: by block, or with `coarse` by stage."""
        stem = "^(?:" + "|".join(map(re.escape, self.stem_names())) + ")"
        if coarse and len(self.plans) > 1:
            return {"stem": stem, "blocks": r"^stages\.(\d+)"}
        blocks = [(f"^{re.escape(prefix)}", (layer,)) for prefix, layer in layer_prefixes(self).items() if layer]
        return {"stem": stem, "blocks": blocks}

    @property
    def head_hidden_size(self) -> int:
        """The width of the input of the head, as in timm."""
        return self.num_features

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Make the model one for images of another size. Other sizes work in any case; see `input_size`."""
        self.input_size = (self.input_size[0], *image_sides(img_size))
        if self.default_cfg:
            options = self.default_cfg["options"] | {"img_size": self.input_size[1:]}
            sizes = {"input_size": self.input_size, "pool_size": self.cfg()["pool_size"]}
            self.default_cfg |= {**sizes, "options": options}
            self.pretrained_cfg |= sizes

    def get_classifier(self) -> nn.Module:
        return self.head

    def make_head(self, num_classes: int, global_pool: str, drop_rate: float) -> None:
        """The pooling, the dropout in front of the classifier, and the classifier."""
        if not 0.0 <= drop_rate < 1.0:
            raise UsageError(f"drop_rate is the dropout in front of the classifier, from 0 to below 1, not {drop_rate}")
        self.drop_rate = drop_rate
        self.reset_classifier(num_classes, global_pool)

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
        if self.default_cfg:
            self.default_cfg["num_classes"] = num_classes
        like = next(self.parameters())
        self.head = (
            linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            if num_classes
            else nn.Identity()
        )

    def cfg(self) -> dict[str, Any]:
        """The fields of timm's `default_cfg`."""
        reduction = self.feature_info[-1]["reduction"] if self.feature_info else 1  # a plan may have no blocks
        pooled = tuple(-(-side // reduction) for side in self.input_size[1:])
        return {
            "num_classes": self.num_classes,
            "pool_size": None if self.output_fmt == "NLC" else pooled,
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "mean": IMAGENET_MEAN,
            "std": IMAGENET_STD,
            "first_conv": self.first_conv,
            "classifier": "head",
        }

    def changed_options(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "global_pool": self.global_pool}

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.empty(1, *(input_size or self.input_size), dtype=next(self.parameters()).dtype, device="meta")


class FeatureBackbone(nn.Module):
    """`features_only`: images in, a list of maps (B, C, H, W) out. Modules that no map needs are removed."""

    def __init__(self, model: VisionModel, out_indices: Sequence[int] | int | None = None) -> None:
        super().__init__()
        if out_indices is None and model.last_maps is not None:
            out_indices = min(model.last_maps, len(model.feature_info))
        self.out_indices = model.check_indices(out_indices)
        self.feature_info = FeatureInfo(model.feature_info[index] for index in self.out_indices)
        self.default_cfg = model.default_cfg
        model.prune_intermediate_layers(self.out_indices, prune_norm=True)
        self.model = model

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.model.intermediates(x, self.out_indices)[1]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.model.set_grad_checkpointing(enable)
