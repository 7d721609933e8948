"""The zoo: five families, each one file; baseline and Steps twin are the same class under different plans."""

from stepsnet.models import deit, language, resnet, swin, swin_plus
from stepsnet.models.compile import compile_blocks
from stepsnet.models.create import ModelOptions, cost_of, create_model, load_model
from stepsnet.models.files import load_weights, save_model
from stepsnet.models.folding import fold
from stepsnet.models.model import Model, layer_ids
from stepsnet.models.registry import Variant, get_variant, list_models
from stepsnet.models.vision import FeatureBackbone, VisionModel

__all__ = [
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
