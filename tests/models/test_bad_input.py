"""Invalid names, options and inputs raise one sentence: what is wrong, the value, what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.blocks.attention import Attention
from stepsnet.errors import UsageError
from stepsnet.models import create_model
from stepsnet.models.model import freeze
from tests.models.tiny import vision

MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    (
        "steps_diet_small",
        {},
        r"^there is no model 'steps_diet_small'; nearest: steps_deit_small.*`stepsnet models` lists them all$",
    ),
    (
        "deit_small",
        {"plan": "192x12, 272x6"},
        r"'192x12, 272x6' ends at width 272, but the model is 384 wide; end it with 384x",
    ),
    ("transformer_30m", {"plan": "192x6"}, r"ends at width 192, but the model is 384 wide"),
    ("resnet18", {"plan": "64x1; 128x1; 256x1; 256x1"}, r"'256x1' ends at width 256, but stage 4 is 512 wide"),
    ("resnet18", {"stem_stride": 2}, r"stem_stride is 2, but must be 4, or 1 for small images"),
    (
        "deit_small",
        {"plan": "384x6, 192x6"},
        r"goes from width 384 to 192: every step must be wider than the one before",
    ),
    ("deit_small", {"plan": "192by12"}, r"'192by12' in the plan .* looks like '192x12, 272x6, 384x6'"),
    (
        "swin_tiny",
        {"plan": "96x2; 192x2"},
        r"network has 4 stages, the plan 2; write one plan per stage, separated by ';'",
    ),
    ("swin_tiny", {"plan": [1, 1, 1]}, r"has 4 stages, the plan 3"),
    ("deit_small", {"plan": "192x6; 384x6"}, r"has 1 stage, the plan 2"),
    ("deit_small", {"plan": [3, 3]}, r"has 1 stage, the plan 2"),
    ("deit_small", {"plan": 0}, r"the number of steps is at least 1 .*, not 0"),
    ("test_deit", {"plan": 20}, r"20 steps, each √2 narrower than the next, do not fit into width 32"),
    ("deit_small", {"head_dim": 50}, r"heads of 50 channels do not divide width 384; dimensions that do: 1, 2, 3"),
    ("transformer_30m", {"plan": "33x2, 384x2"}, r"width 33 has no even head dimension, which rotary positions need"),
    (
        "transformer_30m",
        {"head_dim": 3},
        r"128 heads of width 384 are 3 channels each; rotary positions need an even number",
    ),
    ("transformer_30m", {"embed_scale": 0}, r"embed_scale is 0, but must be a positive number"),
    ("transformer_30m", {"embed_scale": "big"}, r"embed_scale is 'big', but must be a number"),
    ("deit_small", {"img_size": 8}, r"img_size 8×8 is smaller than one patch of 16×16; give a smaller patch_size"),
    ("swin_tiny", {"img_size": 3}, r"img_size 3×3 is smaller than one patch of 4×4"),
    ("deit_small", {"img_size": 32.0}, r"img_size is 32.0, but must be a number of pixels or two"),
    ("swin_tiny", {"depths": ()}, r"depths is \(\), but must be one whole number per stage"),
    ("stepified_images", {}, r"^stepified_images is only a name in files: `load_model` loads a file"),
    ("stepified_nope", {}, r"^there is no model 'stepified_nope'"),
    ("deit_small", {"window_size": 7}, r"deit_small has no option 'window_size'.*; its options: embed_dim, depth"),
    ("deit_small", {"num_class": 7}, r"no option 'num_class'; nearest: num_classes"),
    ("deit_small", {"join": "match"}, r"no join 'match'; nearest: matched"),
    ("deit_small", {"macro": "revers"}, r"no macro 'revers'; nearest: reverse; known are steps, reverse"),
    ("steps_deit_small", {"macro": "reverse", "join": "matched_grad"}, r"reverse design \(Eq. 6\) has no joins"),
    ("deit_small", {"residual": "rezeros"}, r"no residual design 'rezeros'; nearest: rezero"),
    ("deit_small", {"global_pool": "max"}, r"DeiT pools by 'token', 'avg', '', not by 'max'"),
    (
        "swin_tiny",
        {"global_pool": ""},
        r"1000 classes with global_pool='': a classifier needs a pool; without a pool, give num_classes=0",
    ),
    ("swin_tiny", {"num_classes": -1}, r"num_classes is -1, but must be"),
    (
        "swin_tiny",
        {"drop_path_rate": 1.0},
        r"drop_path_rate is the probability that a branch is dropped, from 0 to below 1, not 1.0",
    ),
    ("swin_tiny", {"out_indices": [0]}, r"out_indices chooses among feature maps: it needs features_only=True"),
]


@pytest.mark.parametrize(
    ("name", "options", "sentence"), MISTAKES, ids=[f"{name}-{options}" for name, options, _ in MISTAKES]
)
def test_invalid_names_and_options_are_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        create_model(name, device="meta", **options)
    assert "\n" not in str(caught.value)


INPUTS: list[tuple[str, Tensor, str]] = [
    ("test_deit", torch.zeros(1, 3, 7, 32), r"an image of 7×32 is smaller than one patch of 8×8"),
    ("test_swin", torch.zeros(1, 3, 1, 1), r"an image of 1×1 is smaller than one patch of 2×2"),
    ("test_resnet", torch.zeros(1, 3, 0, 32), r"an image of 0×32 is smaller"),
    ("test_deit", torch.zeros(1, 4, 32, 32), r"images of shape \(batch, 3, height, width\), got \(1, 4, 32, 32\)"),
    ("test_swin", torch.zeros(1, 4, 32, 32), r"images of shape \(batch, 3, height, width\), got \(1, 4, 32, 32\)"),
    ("test_resnet", torch.zeros(1, 4, 32, 32), r"images of shape \(batch, 3, height, width\), got \(1, 4, 32, 32\)"),
    ("test_deit", torch.zeros(3, 32, 32), r"images of shape \(batch, 3, height, width\), got \(3, 32, 32\)"),
    ("test_swin", torch.zeros(3, 32, 32), r"images of shape \(batch, 3, height, width\), got \(3, 32, 32\)"),
    ("test_resnet", torch.zeros(3, 32, 32), r"images of shape \(batch, 3, height, width\), got \(3, 32, 32\)"),
    (
        "test_transformer",
        torch.zeros(4, dtype=torch.long),
        r"token ids of shape \(batch, tokens\), got \(4,\) of torch.int64",
    ),
    ("test_transformer", torch.zeros(1, 4), r"token ids of shape \(batch, tokens\), got \(1, 4\) of torch.float32"),
]


@pytest.mark.parametrize(
    ("name", "x", "sentence"), INPUTS, ids=[f"{name}-{tuple(x.shape)}-{x.dtype}" for name, x, _ in INPUTS]
)
def test_inputs_of_wrong_shape_or_type_are_refused(name: str, x: Tensor, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        create_model(name)(x)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(UsageError, match="5 heads do not divide width 12; numbers that do: 1, 2, 3, 4, 6, 12"):
        Attention(12, 5)


def test_a_classifier_without_a_pool_is_refused() -> None:
    model = vision("test_swin", global_pool="", num_classes=0)
    with pytest.raises(UsageError, match="3 classes with global_pool=''"):
        model.reset_classifier(3)
    assert model.num_classes == 0


def test_a_language_model_has_no_classifier() -> None:
    model = create_model("test_transformer")
    with pytest.raises(UsageError, match="Transformer has no classifier"):
        model.reset_classifier(3)
    with pytest.raises(UsageError, match="Transformer has no classifier"):
        model.get_classifier()


def test_names_that_resemble_nothing_get_no_suggestion() -> None:
    with pytest.raises(UsageError, match=r"^there is no model 'nope'; `stepsnet models` lists them all$"):
        create_model("nope")


def test_a_module_that_cannot_reset_its_parameters_is_named() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

    with pytest.raises(UsageError, match=r"net\.joins\.0 \(Stubborn\) holds parameters but has no reset_parameters"):
        create_model("test_steps_deit", join=Stubborn()).reset_parameters()


@pytest.mark.parametrize("name", ["deit_small", "resnet18", "swin_tiny"])
def test_an_image_too_large_to_count_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="the largest side is 65,536 pixels"):
        create_model(name, img_size=1_000_000, device="meta")


def test_two_sources_of_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="give one of them"):
        create_model("steps_resnet_mini", pretrained=True, checkpoint_path="weights.safetensors")


def test_a_model_with_a_tied_head_cannot_be_frozen_whole() -> None:
    model = create_model("test_transformer")
    with pytest.raises(UsageError, match="freeze=body would freeze every weight of Transformer"):
        freeze(model, "body")
    assert all(parameter.requires_grad for parameter in model.parameters())
