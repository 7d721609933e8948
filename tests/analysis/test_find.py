"""The residual blocks of other libraries' models are found exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepsnet
from stepsnet.analysis.find import FoundStack, find_blocks
from stepsnet.errors import UsageError
from stepsnet.optional.torchvision import import_torchvision

IMAGES = (2, 3, 32, 32)


def timm_model(name: str, **options: Any) -> nn.Module:
    import_torchvision()
    timm = pytest.importorskip("timm")
    return timm.create_model(name, pretrained=False, num_classes=10, **options)


TIMM: dict[str, tuple[dict[str, Any], dict[str, list[int]], str, int]] = {
    # options, {list: positions of the blocks in it}, their type, where their channels are
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 3, "embed_dim": 24}, {"blocks": [0, 1, 2]}, "Block", -1),
    "deit_tiny_distilled_patch16_224": (
        {"img_size": 32, "depth": 3, "embed_dim": 24},
        {"blocks": [0, 1, 2]},
        "Block",
        -1,
    ),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 32, "window_size": 4, "embed_dim": 12, "depths": (2, 3), "num_heads": (2, 2)},
        {"layers.0.blocks": [0, 1], "layers.1.blocks": [0, 1, 2]},
        "SwinTransformerBlock",
        -1,
    ),
    "convnext_atto": (
        {"dims": (8, 12, 16, 20), "depths": (2, 1, 3, 2)},
        {"stages.0.blocks": [0, 1], "stages.1.blocks": [0], "stages.2.blocks": [0, 1, 2], "stages.3.blocks": [0, 1]},
        "ConvNeXtBlock",
        1,
    ),
    "resnet18": ({}, {"layer1": [0, 1], "layer2": [1], "layer3": [1], "layer4": [1]}, "BasicBlock", 1),
    "resnet50": (
        {},
        {"layer1": [1, 2], "layer2": [1, 2, 3], "layer3": [1, 2, 3, 4, 5], "layer4": [1, 2]},
        "Bottleneck",
        1,
    ),
}


@pytest.mark.parametrize("looking", ["structure", "pass"])
@pytest.mark.parametrize("name", TIMM)
def test_blocks_of_timm(name: str, looking: str) -> None:
    options, expected, kind, channel_dim = TIMM[name]
    with torch.device("meta"):
        model = timm_model(name, **options)
        inputs = (torch.empty(IMAGES),) if looking == "pass" else ()
    found = find_blocks(model, *inputs)
    assert [stack.blocks for stack in found] == [
        [model.get_submodule(f"{where}.{i}") for i in at] for where, at in expected.items()
    ]
    assert {type(block).__name__ for stack in found for block in stack.blocks} == {kind}
    assert {stack.channel_dim for stack in found} == {channel_dim}


def transformers_model(kind: str) -> tuple[nn.Module, Tensor]:
    """A tiny one with three blocks, and an input for it."""
    import_torchvision()  # some of its modules import it
    transformers = pytest.importorskip("transformers")
    small = {
        "num_hidden_layers": 3,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "image_size": 32,
    }
    if kind != "vit":
        small |= {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "num_key_value_heads": 2}
    if kind == "mixtral":
        small |= {"num_local_experts": 3}
    config = transformers.AutoConfig.for_model(kind, **small)
    return transformers.AutoModel.from_config(config), torch.zeros(IMAGES) if kind == "vit" else torch.zeros(
        2, 7, dtype=torch.long
    )


@pytest.mark.parametrize("looking", ["structure", "pass"])
@pytest.mark.parametrize(
    ("kind", "where"),
    [("gpt2", "h"), ("llama", "layers"), ("bert", "encoder.layer"), ("vit", "layers"), ("mixtral", "layers")],
)
def test_blocks_of_transformers(kind: str, where: str, looking: str) -> None:
    model, x = transformers_model(kind)
    (found,) = find_blocks(model, *((x,) if looking == "pass" else ()))
    assert found == FoundStack(where, list(model.get_submodule(where).children()), -1)
    assert len(found.blocks) == 3


def test_a_stepsnet_has_one_stack_per_stage() -> None:
    model = stepsnet.create_model("test_steps_swin")
    found = find_blocks(model)
    assert [block for stack in found for block in stack.blocks] == model.blocks_in_order()
    assert len(found) == len(model.nets())


class Block(nn.Module):
    def __init__(self, width: int, out: int | None = None) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out or width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        return x + y if y.shape == x.shape else y


def test_custom_blocks_between_other_layers_are_found() -> None:
    model = nn.Sequential(nn.Linear(3, 8), *(Block(8) for _ in range(4)), nn.Linear(8, 2))
    (found,) = find_blocks(model)
    assert found == FoundStack("[1:5]", list(model)[1:5], -1)


def test_equal_stages_are_searched() -> None:
    model = nn.Sequential(*(nn.Sequential(*(Block(8) for _ in range(3))) for _ in range(2)))
    assert [stack.name for stack in find_blocks(model)] == ["0", "1"]


def test_blocks_that_change_the_shape_are_left_out() -> None:
    model = nn.Sequential(Block(8), Block(8), Block(8, 6), Block(6), Block(6))
    (first, second) = find_blocks(model, torch.ones(2, 8))
    assert first.blocks == [model[0], model[1]]
    assert second.blocks == [model[3], model[4]]
    assert second.name == "[3:5]"


def test_finding_blocks_leaves_the_model_unchanged() -> None:
    model = nn.Sequential(Block(8), Block(8))
    find_blocks(model, torch.ones(2, 8))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_a_network_without_blocks_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(UsageError, match=r"Sequential has no list of similar modules .* blocks=model.layers"):
        find_blocks(model)


@pytest.mark.parametrize("join", ["plain", "matched_grad"])
def test_a_stepified_model_is_one_stack(join: str) -> None:
    """The last step has blocks of the class itself, the others of a subclass; γ has one z_0 for all of them."""
    vit = timm_model("vit_tiny_patch16_224", img_size=32, depth=4, embed_dim=48, num_heads=3)
    x = torch.randn(IMAGES)
    stepped = stepsnet.stepify(vit, "32x3, 48x3", join=join)
    assert [len(stack.blocks) for stack in find_blocks(stepped, x)] == [6]
    assert set(stepsnet.analysis.shortcut_ratio(stepped, x).stage) == {0}
