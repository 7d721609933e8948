"""Names of models. A variant is a family's class and the options that make it; baseline and Steps twin differ in their plan alone."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.errors import UsageError, nearest

if TYPE_CHECKING:
    import torch

    from stepsnet.families.model import FeatureBackbone, Model

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Variant:
    name: str
    family: type[Model]
    options: dict[str, Any]


VARIANTS: dict[str, Variant] = {}


def register(family: type[Model], name: str, **options: Any) -> None:
    VARIANTS[name] = Variant(name, family, options)


def list_models(pattern: str = "*") -> list[str]:
    """The registered names that match a shell pattern, as `steps_*`."""
    return sorted(fnmatch.filter(VARIANTS, pattern))


def get_variant(name: str) -> Variant:
    if name not in VARIANTS:
        raise UsageError(f"there is no model '{name}'{nearest(name, VARIANTS)}; `stepsnet models` lists them all")
    return VARIANTS[name]


def create_model(
    name: str,
    *,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    checkpoint_path: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Any,
) -> Model | FeatureBackbone:
    """Make a model by name.

    Options are those of the family's class, in front of all `plan`, `join`, `macro`, `num_classes`, `img_size`, `patch_size`, `window_size`,
    `in_chans`, `drop_path_rate`, `global_pool` and `residual`; one that the family does not have is refused with the nearest that it has.
    An option that is None keeps the variant's own value. `features_only` gives a backbone that returns a list of maps (B, C, H, W),
    `out_indices` which of them. `checkpoint_path` loads weights. With `device="meta"` nothing is allocated: `to_empty(...)` and `reset_parameters()` fill it.
    """
    import torch

    from stepsnet.families.model import FeatureBackbone, VisionModel

    variant = get_variant(name)
    known = inspect.signature(variant.family).parameters
    for option in options:
        if option not in known:
            raise UsageError(f"{name} has no option '{option}'{nearest(option, known)}; its options: {', '.join(known)}")
    chosen = variant.options | {key: value for key, value in options.items() if value is not None}
    with torch.device(device or torch.get_default_device()):
        model = variant.family(**chosen)
    model.default_cfg = describe(variant, model, chosen)
    if checkpoint_path is not None:
        from stepsnet.families.files import load_weights

        load_weights(model, checkpoint_path)
    if not features_only:
        if out_indices is not None:
            raise UsageError("out_indices chooses among feature maps: it needs features_only=True")
        return model
    if not isinstance(model, VisionModel):
        raise UsageError(f"{name} takes text, not pictures: it has no feature maps")
    return FeatureBackbone(model, out_indices)


def describe(variant: Variant, model: Model, chosen: dict[str, Any]) -> dict[str, Any]:
    """`default_cfg`, as timm has it: how to feed the model, and what it was made from."""
    pictures = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "bicubic", "num_classes": chosen.get("num_classes", 1000)}
    return {
        "architecture": variant.name,
        "family": variant.family.family,
        "input_size": model.input_size,
        "options": chosen,
        **(pictures if len(model.input_size) == 3 else {"vocab_size": chosen.get("vocab_size")}),
    }
