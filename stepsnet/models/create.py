"""Models by name: made, rebuilt from files, counted."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import nn

from stepsnet.blocks.designs import ResidualLike
from stepsnet.blocks.linear import INITS
from stepsnet.cost import Cost, count_cost
from stepsnet.errors import UsageError, nearest
from stepsnet.macro import Join
from stepsnet.models.design import Design, PlanLike
from stepsnet.models.files import load_weights, read_header
from stepsnet.models.language import Transformer
from stepsnet.models.model import Model
from stepsnet.models.registry import Variant, get_variant
from stepsnet.models.vision import FeatureBackbone, VisionModel

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

DESIGN_OPTIONS = {"plan": "plan", "join": "join", "macro": "macro", "residual": "residual", "drop_path_rate": "drop_path"}
"""Options of every model that make up its Design, by the names of Design's fields."""


class ModelOptions(TypedDict, total=False):
    """All options of all families. One that is None keeps the variant's own value."""

    plan: PlanLike
    join: Join | None
    macro: str | None
    residual: ResidualLike | None
    init: str | None
    num_classes: int | None
    img_size: int | tuple[int, int] | None
    patch_size: int | None
    window_size: int | None
    in_chans: int | None
    drop_path_rate: float | None
    global_pool: str | None
    head_dim: int | None
    embed_dim: int | None
    depth: int | None
    depths: Sequence[int] | None
    bottleneck: bool | None
    vocab_size: int | None
    seq_len: int | None


@overload
def create_model(
    name: str,
    *,
    features_only: Literal[False] = False,
    checkpoint_path: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Unpack[ModelOptions],
) -> Model: ...
@overload
def create_model(
    name: str,
    *,
    features_only: Literal[True],
    out_indices: int | Sequence[int] | None = None,
    checkpoint_path: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Unpack[ModelOptions],
) -> FeatureBackbone: ...
def create_model(
    name: str,
    *,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    checkpoint_path: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Unpack[ModelOptions],
) -> Model | FeatureBackbone:
    """Make a model by name.

    Options are those of the family's class, in front of all `plan`, `join`, `macro`, `num_classes`, `img_size`, `patch_size`,
    `window_size`, `in_chans`, `drop_path_rate`, `global_pool` and `residual`; one that the family does not have is refused with the
    nearest that it has. `init` is how linear layers start: the family's "own" way, or "xavier". `features_only` gives a backbone that
    returns a list of maps (B, C, H, W), `out_indices` which of them. `checkpoint_path` loads weights. With `device="meta"` nothing is
    allocated: `to_empty(device=…)` and `reset_parameters()` fill it.
    """
    variant = get_variant(name)
    known = [option for option in inspect.signature(variant.family).parameters if option != "design"] + [*DESIGN_OPTIONS, "init"]
    for option in options:
        if option not in known:
            raise UsageError(f"{name} has no option '{option}'{nearest(option, known)}; its options: {', '.join(known)}")
    chosen = variant.options | {key: value for key, value in options.items() if value is not None}
    init = str(chosen.pop("init", "own"))
    if init not in INITS:
        raise UsageError(f"there is no init '{init}'{nearest(init, INITS)}; known are {', '.join(INITS)}")
    device = torch.device(device) if device is not None else torch.get_default_device()
    with device:
        design = Design(**{DESIGN_OPTIONS[key]: value for key, value in chosen.items() if key in DESIGN_OPTIONS})
        own = {key: value for key, value in chosen.items() if key not in DESIGN_OPTIONS}
        model = variant.family(design=design, **own).to(device)  # parts given by the caller, such as a join, may be elsewhere
    if init != "own":
        model.init = chosen["init"] = init
        model.reset_parameters()
    model.default_cfg = describe(variant, model, chosen)
    if checkpoint_path is not None:
        load_weights(model, checkpoint_path)
    if not features_only:
        if out_indices is not None:
            raise UsageError("out_indices chooses among feature maps: it needs features_only=True")
        return model
    if not isinstance(model, VisionModel):
        raise UsageError(f"{name} takes text, not pictures: it has no feature maps")
    return FeatureBackbone(model, out_indices)


def describe(variant: Variant, model: Model, options: dict[str, Any]) -> dict[str, Any]:
    """`default_cfg`, as timm has it: how to feed the model, and what it was made from."""
    config: dict[str, Any] = {"architecture": variant.name, "family": model.family, "input_size": model.input_size, "options": options}
    if isinstance(model, VisionModel):
        config |= {"num_classes": model.num_classes, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "interpolation": "bicubic"}
    if isinstance(model, Transformer):
        config |= {"vocab_size": model.vocab_size}
    return config


def load_model(
    path: str | Path, *, device: str | torch.device = "cpu", mmap: bool = True, **options: Unpack[ModelOptions]
) -> Model:
    """Rebuild a saved model with its weights; `options` override those it was made with (`drop_path_rate`, …).

    The weights stay in the file, mapped into memory, until they are changed: it may be deleted or replaced meanwhile, but where
    something may overwrite it in place, load a copy with `mmap=False`.
    """
    header = read_header(path)
    saved = json.loads(header["options"]) | {"plan": header["plan"]}
    model = create_model(header["name"], device="meta", **(saved | options))
    load_weights(model, path, mmap=mmap)
    return model.to(device)


def cost_of(model: nn.Module | str, *, input_size: tuple[int, ...] | None = None) -> Cost:
    """Blocks, layers, parameters and MACs of a model or of a name, counted on the meta device.

    `input_size` is the shape of one input, without the batch; a module that is not of this package needs it.
    """
    return count_cost(create_model(model, device="meta") if isinstance(model, str) else model, input_size=input_size)
