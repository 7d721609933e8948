"""Registered models: one file per family. A baseline and its StepsNet version are one class with different plans."""

from stepsnet.models import deit, language, resnet, swin, swin_plus
from stepsnet.models.design import Design
from stepsnet.models.files import load_weights, save_model
from stepsnet.models.model import Model, freeze, frozen_modules, layer_ids
from stepsnet.models.optimise import compile_blocks, fold
from stepsnet.models.registry import (
    ModelOptions,
    Variant,
    cost_of,
    create_model,
    get_variant,
    list_models,
    load_model,
    memory_of,
)
from stepsnet.models.vision import FeatureBackbone, VisionModel

__all__ = [
    "Design",
    "FeatureBackbone",
    "Model",
    "ModelOptions",
    "Variant",
    "VisionModel",
    "compile_blocks",
    "cost_of",
    "create_model",
    "deit",
    "fold",
    "freeze",
    "frozen_modules",
    "get_variant",
    "language",
    "layer_ids",
    "list_models",
    "load_model",
    "load_weights",
    "memory_of",
    "resnet",
    "save_model",
    "swin",
    "swin_plus",
]
