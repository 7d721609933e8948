"""The zoo: five families, each one file; baseline and Steps twin are the same class under different plans."""

from stepsnet.families import deit, language, resnet, swin, swin_plus
from stepsnet.families.files import load_model, load_weights, save_model
from stepsnet.families.model import FeatureBackbone, Model, VisionModel, layer_ids
from stepsnet.families.registry import Variant, create_model, get_variant, list_models
from stepsnet.families.resolve import cost_of

__all__ = [
    "FeatureBackbone",
    "Model",
    "Variant",
    "VisionModel",
    "cost_of",
    "create_model",
    "deit",
    "get_variant",
    "language",
    "layer_ids",
    "list_models",
    "load_model",
    "load_weights",
    "resnet",
    "save_model",
    "swin",
    "swin_plus",
]
