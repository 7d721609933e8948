"""Models by name: registered, made, loaded from files, counted.

A variant is a family's class with the options that make it. A baseline and its StepsNet version differ in the plan
only.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn

from stepsnet.blocks.designs import ResidualLike
from stepsnet.blocks.layers import INITS
from stepsnet.cost import Cost, Memory, count_activations, count_macs, count_params
from stepsnet.errors import UsageError, nearest
from stepsnet.macro import Join
from stepsnet.models.design import Design, PlanLike
from stepsnet.models.files import load_weights, read_header, weights_file
from stepsnet.models.model import Model
from stepsnet.models.vision import FeatureBackbone, VisionModel
from stepsnet.runs.folder import pretrained_folder


@dataclass(frozen=True)
class Variant:
    """A registered name: the class of its family and the options that make it."""

    name: str
    family: type[Model]
    options: dict[str, Any]


VARIANTS: dict[str, Variant] = {}
DESIGN_OPTIONS = {
    "plan": "plan",
    "join": "join",
    "macro": "macro",
    "residual": "residual",
    "drop_path_rate": "drop_path",
}
"""Options of every model that make up its Design, with the names of Design's fields."""


class ModelOptions(TypedDict, total=False):
    """All options of all families. None means the variant's own value."""

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
    drop_rate: float | None
    global_pool: str | None
    head_dim: int | None
    heads: str | None
    embed_scale: float | None
    embed_dim: int | None
    depth: int | None
    depths: Sequence[int] | None
    bottleneck: bool | None
    stem_stride: int | None
    vocab_size: int | None
    seq_len: int | None


def register(family: type[Model], name: str, **options: Any) -> None:
    VARIANTS[name] = Variant(name, family, options)


def list_models(filter: str | Sequence[str] = "*", exclude_filters: str | Sequence[str] = ()) -> list[str]:  # noqa: A002
    """The registered names that match one of the shell patterns, such as `steps_*`, and none of the excluded ones."""
    wanted, unwanted = ([part] if isinstance(part, str) else part for part in (filter, exclude_filters))
    matching = {name for part in wanted for name in fnmatch.filter(VARIANTS, part)}
    return sorted(matching.difference(*(fnmatch.filter(VARIANTS, part) for part in unwanted)))


def get_variant(name: str) -> Variant:
    """The variant of a registered name; a wrong one raises an error with the nearest known one."""
    if name.startswith("stepified_"):  # in the file of a model of another library
        adopted: dict[str, Variant] = import_module("stepsnet.surgery.adopted").VARIANTS
        if name in adopted:
            return adopted[name]
    task, _, backbone = name.partition("/")
    if task in ("detection", "segmentation"):  # in the weights of a run, whose network `stepsnet.train` makes
        how = "give the folder of its run to `stepsnet predict`, `eval`, `info`, `doctor` or `resume`"
        raise UsageError(f"the file of a {task} model around {backbone} does not describe the whole model; {how}")
    if name not in VARIANTS:
        raise UsageError(f"there is no model '{name}'{nearest(name, VARIANTS)}; `stepsnet models` lists them all")
    return VARIANTS[name]


LEAST = {
    "num_classes": 0, "patch_size": 1, "window_size": 1, "in_chans": 1, "head_dim": 1, "embed_dim": 1, "depth": 0,
    "vocab_size": 1, "seq_len": 1,
}  # fmt: skip
"""The smallest value of options that are whole numbers."""


def check_options(variant: Variant, options: Mapping[str, Any]) -> None:
    own = [option for option in inspect.signature(variant.family).parameters if option != "design"]
    if "source" in own and "source" not in options:
        raise UsageError(f"{variant.name} is only a name in files: `load_model` loads a file, `stepify` makes a model")
    known = [*own, *DESIGN_OPTIONS, "init"]
    for option in options:
        if option not in known:
            raise UsageError(
                f"{variant.name} has no option '{option}'{nearest(option, known)}; its options: {', '.join(known)}"
            )
    for option, least in LEAST.items():
        value = options.get(option)
        if value is not None and (not isinstance(value, int) or value < least):
            raise UsageError(f"{option} is {value!r}, but must be a whole number of at least {least}")
    if not isinstance(bottleneck := options.get("bottleneck") or False, bool):
        raise UsageError(f"bottleneck is {bottleneck!r}, but must be true or false")
    for option in ("drop_path_rate", "drop_rate", "embed_scale"):
        if not isinstance(value := options.get(option, 0) or 0, (int, float)):
            raise UsageError(f"{option} is {value!r}, but must be a number")
    depths = options.get("depths")
    numbers = isinstance(depths, (tuple, list)) and depths and all(isinstance(each, int) for each in depths)
    if depths is not None and not numbers:
        raise UsageError(f"depths is {depths!r}, but must be one whole number per stage")


@overload
def create_model(
    name: str,
    pretrained: bool = False,
    *,
    features_only: Literal[False] = False,
    checkpoint_path: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Unpack[ModelOptions],
) -> Model: ...
@overload
def create_model(
    name: str,
    pretrained: bool = False,
    *,
    features_only: Literal[True],
    out_indices: int | Sequence[int] | None = None,
    checkpoint_path: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Unpack[ModelOptions],
) -> FeatureBackbone: ...
def create_model(
    name: str,
    pretrained: bool = False,
    *,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    checkpoint_path: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Unpack[ModelOptions],
) -> Model | FeatureBackbone:
    """Make a model by name.

    Every model takes `plan`, `join`, `macro`, `residual`, `drop_path_rate` and `init`. Further options are the
    arguments of its family's class, such as `num_classes`, `img_size` or `vocab_size`; an unknown one raises an error
    with the nearest known ones. `init` is the initialisation of linear layers: the family's "own", or "xavier". With
    `features_only` the result is a backbone that returns a list of maps (B, C, H, W), chosen by `out_indices`.
    `checkpoint_path` loads weights; `pretrained` loads those that come with the package, and then replaces the head if
    `num_classes` is another. With `device="meta"` nothing is allocated; `to_empty(device=…)` and then
    `reset_parameters()` fill such a model.
    """
    variant = get_variant(name)
    classes = options.pop("num_classes", None) if pretrained else None
    if pretrained:
        if checkpoint_path is not None:
            raise UsageError("pretrained=True and checkpoint_path both load weights: give one of them")
        checkpoint_path = pretrained_folder(name)
    check_options(variant, options)
    chosen = variant.options | {key: value for key, value in options.items() if value is not None}
    init = str(chosen.pop("init", "own"))
    if init not in INITS:
        raise UsageError(f"there is no init '{init}'{nearest(init, INITS)}; known are {', '.join(INITS)}")
    design = Design(**{DESIGN_OPTIONS[key]: value for key, value in chosen.items() if key in DESIGN_OPTIONS})
    arguments = {key: value for key, value in chosen.items() if key not in DESIGN_OPTIONS} | {"design": design}
    device = torch.device(device) if device is not None else torch.get_default_device()
    with device:
        model = variant.family(**arguments)
    hollow = any(parameter.is_meta for parameter in model.parameters())  # also inside accelerate.init_empty_weights
    if device.type == "meta" or not hollow:
        model.to(device)  # parts given by the caller, such as a join, may be elsewhere
    if init != "own":
        model.init = chosen["init"] = init
        model.reset_parameters()
    model.default_cfg = {
        "architecture": name,
        "family": model.family,
        "input_size": model.input_size,
        "options": chosen,
        **model.cfg(),
    }
    if isinstance(model, VisionModel):
        model.pretrained_cfg = {"architecture": name, "input_size": model.input_size, **model.cfg()}
    if checkpoint_path is not None:
        load_weights(model, weights_file(checkpoint_path))
    if classes is not None and classes != model.changed_options().get("num_classes"):
        model.reset_classifier(classes)
    if not features_only:
        if out_indices is not None:
            raise UsageError("out_indices chooses among feature maps: it needs features_only=True")
        return model
    if not isinstance(model, VisionModel):
        raise UsageError(f"{name} takes text, not images: it has no feature maps")
    return FeatureBackbone(model, out_indices)


def load_model(
    path: str | Path, *, device: str | torch.device = "cpu", mmap: bool = True, **options: Unpack[ModelOptions]
) -> Model:
    """Rebuild a saved model with its weights; `options` override those it was made with (`drop_path_rate`, …).

    `path` is a file that `save_model` wrote, or the folder of a finished run. With `mmap` the weights are
    memory-mapped. The file may be deleted or replaced while the model is in use; if it may be overwritten in place,
    load with `mmap=False`.
    """
    path = weights_file(path)
    header = read_header(path)
    saved = json.loads(header["options"]) | {"plan": header["plan"]}
    on_meta = get_variant(header["name"]).family.on_meta
    model = create_model(header["name"], device="meta" if on_meta else "cpu", **(saved | options))
    load_weights(model, path, mmap=mmap)
    return model.to(device)


def cost_of(model: nn.Module | str, *, input_size: tuple[int, ...] | None = None) -> Cost:
    """Blocks, layers, parameters and MACs of a model or of a name, counted on the meta device.

    `input_size` is the shape of one input without the batch; a module of another library needs it.
    """
    if isinstance(model, str):
        return _cost_of_name(model, input_size and tuple(input_size))
    if isinstance(model, Model):
        return model.cost(input_size)
    return Cost(None, None, count_params(model), count_macs(model, _input_of(model, input_size)))


def memory_of(model: nn.Module | str, *, input_size: tuple[int, ...] | None = None) -> Memory:
    """Bytes of activations and of the KV cache for one input; `stepsnet/cost.py` defines them.

    `input_size` is the shape of one input without the batch; a module of another library needs it.
    """
    if isinstance(model, str):
        model = create_model(model, device="meta")
    if isinstance(model, Model):
        return model.memory(input_size)
    return Memory(count_activations(model, _input_of(model, input_size)), 0)


def _input_of(model: nn.Module, input_size: tuple[int, ...] | None) -> Tensor:
    if input_size is None:
        raise UsageError(f"the input of {type(model).__name__} is unknown; give input_size, the shape of one input")
    return torch.empty(1, *input_size, device="meta")


@cache
def _cost_of_name(name: str, input_size: tuple[int, ...] | None) -> Cost:
    return create_model(name, device="meta").cost(input_size)
