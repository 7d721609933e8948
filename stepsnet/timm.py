"""`import stepsnet.timm` registers the vision models with timm: `timm.create_model("steps_deit_small", plan=…)`.

A name that timm has itself stays timm's: resnet18, resnet34, resnet50 (the same networks) and test_resnet. Every option
of `stepsnet.create_model` is one of `timm.create_model`, and timm's own builder loads weights, from a folder
(`local-dir:`) or the Hub (`hf-hub:`), and wraps the model for `features_only`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from torch import nn

from stepsnet.errors import UsageError
from stepsnet.files import read_json
from stepsnet.integrations.timm import load_timm_weights, timm_twin
from stepsnet.models import VisionModel, create_model
from stepsnet.models.files import options_of
from stepsnet.models.registry import VARIANTS, ModelOptions, Variant
from stepsnet.models.vision import IMAGENET_MEAN, IMAGENET_STD
from stepsnet.optional import require
from stepsnet.runs.folder import CLASSES, WEIGHTS, pretrained_folder, read_settings, shipped_models

zoo = require("timm.models", extra="timm")

__all__ = ["default_cfgs", "load_timm_weights", "model_args", "timm_twin"]

ANY_SIZE = {"dynamic_img_size": True, "dynamic_img_pad": True, "strict_img_size": False}
"""timm's options for images of several sizes. Our models take any size, so these are their only values."""


def model_args(model: VisionModel) -> dict[str, Any]:
    """The options of a model for `timm.models.save_for_hf(…, model_args=…)` and `push_to_hf_hub`, as JSON values.

    timm writes only the name into config.json: a plan of your own is found again through these.
    """
    return json.loads(options_of(model)) | {"plan": model.plan}


def _default_cfg(variant: Variant) -> Any:
    """What timm knows about a model before it is made."""
    family: Any = variant.family
    arguments = {key: option.default for key, option in inspect.signature(family).parameters.items()} | variant.options
    side = arguments["img_size"]
    return zoo.PretrainedCfg(
        input_size=(arguments["in_chans"], side, side),
        num_classes=arguments["num_classes"],
        first_conv=family.first_conv,
        classifier="head",
        paper_ids="arXiv:2511.14329",
        **({"mean": IMAGENET_MEAN, "std": IMAGENET_STD} | _trained(variant.name)),
    )


def _trained(name: str) -> dict[str, Any]:
    """The weights that come with the package, their classes and the transform that they were trained for, if any."""
    if name not in shipped_models():
        return {}
    folder = pretrained_folder(name)
    facts, settings = read_json(folder / CLASSES), read_settings(folder)
    return {
        "file": str(folder / WEIGHTS),
        "label_names": tuple(facts["classes"]),
        "mean": tuple(facts["mean"]),
        "std": tuple(facts["std"]),
        "crop_pct": settings["data"]["crop_pct"],
    }


def _build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """A model by timm's zoo. The builder replaces `default_cfg`, of which `save_model` needs the rest."""
    for option, value in ANY_SIZE.items():
        if options.pop(option, value) != value:
            raise UsageError(f"{name} takes images of any size: {option} is always {value}")
    if pretrained:
        given = {key: options.get(key) for key in ("pretrained_cfg", "pretrained_cfg_overlay")}
        found = zoo.resolve_pretrained_cfg(name, **given)
        if not (found.has_weights or found.state_dict):
            pretrained_folder(name)  # raises: no weights of this model come with the package
    made: list[tuple[VisionModel, dict[str, Any]]] = []

    def make(**arguments: Any) -> VisionModel:
        model = create_model(name, **arguments)
        assert isinstance(model, VisionModel)
        made.append((model, model.default_cfg))
        return model

    features: dict[str, Any] = {"feature_cls": "getter"}
    if options.get("features_only"):
        features |= {"out_indices": _default_indices(name, options)}
    if options.get("feature_cls") in ("list", "dict"):  # these rebuild the network from the modules of its Sequentials
        features |= {"flatten_sequential": True}
    result: Any = zoo.build_model_with_cfg(make, name, pretrained, feature_cfg=features, **options)
    ((model, own),) = made
    sizes = {key: own[key] for key in ("input_size", "pool_size")}
    model.pretrained_cfg |= sizes
    model.default_cfg = own | model.pretrained_cfg
    if result is not model:
        result.pretrained_cfg |= sizes  # timm's default_cfg is the same dict
    built: nn.Module = result
    return built


def _default_indices(name: str, options: dict[str, Any]) -> int | tuple[int, ...]:
    """As many of the last maps as timm's own family returns: three of a Vision Transformer, all of the others."""
    known = {key: value for key, value in options.items() if key in ModelOptions.__annotations__}
    model = create_model(name, device="meta", **known)
    assert isinstance(model, VisionModel)
    every = len(model.feature_info)
    return tuple(range(every)) if model.last_maps is None else min(model.last_maps, every)


def _entry_point(name: str) -> Callable[..., nn.Module]:
    def make(pretrained: bool = False, **options: Any) -> nn.Module:
        return _build(name, pretrained, options)

    make.__name__ = make.__qualname__ = name  # timm registers a function by its name
    make.__doc__ = f"stepsnet's {name}."
    return make


NAMES = [
    name
    for name, variant in VARIANTS.items()
    if issubclass(variant.family, VisionModel) and not zoo.is_model(name)
]
default_cfgs = zoo.generate_default_cfgs({name: _default_cfg(VARIANTS[name]) for name in NAMES})
globals().update({name: zoo.register_model(_entry_point(name)) for name in NAMES})
