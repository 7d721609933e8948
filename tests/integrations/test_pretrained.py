"""Starting from other weights: same outputs where all fits; a new head, adapted inputs, and refusals otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import stepsnet
from stepsnet.errors import UsageError
from stepsnet.models import Model

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "deit": {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 1, "intermediate_size": 128,
             "image_size": 32, "patch_size": 8, "layer_norm_eps": 1e-6},
    "swin": {"embed_dim": 8, "depths": [2, 1], "num_heads": [1, 1], "image_size": 32, "patch_size": 2,
             "window_size": 4, "drop_path_rate": 0.0},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 32, 64], "depths": [2, 2, 2, 2], "layer_type": "basic"},
}  # fmt: skip
OURS: dict[str, dict[str, Any]] = {
    "deit": {},
    "swin": {"embed_dim": 8, "depths": (2, 1), "window_size": 4, "img_size": 32},
    "resnet": {},
}


def saved(path: Path, **options: Any) -> Model:
    model = stepsnet.create_model("test_deit", **options)
    stepsnet.save_model(model, path)
    return model


def shake(model: nn.Module) -> None:
    """Random norms: gains of 1 and running means of 0 would hide errors."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if ("norm" in name or "bn" in name) and tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_a_folder_of_transformers_gives_its_logits(family: str, tmp_path: Path) -> None:
    library = pytest.importorskip("transformers", reason="the library whose weights are read")
    kind = {"deit": "ViT", "swin": "Swin", "resnet": "ResNet"}[family]
    config = getattr(library, f"{kind}Config")(**TRANSFORMERS[family], num_labels=10)
    theirs = getattr(library, f"{kind}ForImageClassification")(config).eval()
    shake(theirs)
    theirs.save_pretrained(tmp_path)
    ours = stepsnet.create_model(f"test_{family}", num_classes=10, **OURS[family]).eval()
    started = stepsnet.load_pretrained(ours, f"hf:{tmp_path}")
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), theirs(image).logits, atol=1e-5, rtol=1e-5)
    assert started.new == ()


def test_a_file_with_timms_names_is_read(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm.models.vision_transformer", reason="the library whose weights are read")
    theirs = timm.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=1, num_classes=7).eval()
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    ours = stepsnet.create_model("test_deit", num_classes=7).eval()
    stepsnet.load_pretrained(ours, tmp_path / "w.safetensors")
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), theirs(image), atol=1e-5, rtol=1e-5)


def test_the_stem_for_small_images_is_timms_resnet_with_a_3x3_convolution_and_no_pooling(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm.models.resnet", reason="the library whose weights are read")
    theirs = timm.ResNet(timm.BasicBlock, layers=(2, 2, 2, 2), num_classes=7)
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.register_module("maxpool", nn.Identity())
    shake(theirs.eval())
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    ours = stepsnet.create_model("resnet18", num_classes=7, stem_stride=1).eval()
    stepsnet.load_pretrained(ours, tmp_path / "w.safetensors")
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), theirs(image), atol=1e-5, rtol=1e-5)


def test_another_number_of_classes_gives_a_new_head_and_is_reported(tmp_path: Path) -> None:
    old = saved(tmp_path / "w.safetensors", num_classes=4).state_dict()
    model = stepsnet.create_model("test_deit", num_classes=6)
    head = model.get_classifier().state_dict()["weight"].clone()
    started = stepsnet.load_pretrained(model, tmp_path / "w.safetensors")
    assert started.new == ("head.weight", "head.bias")
    assert str(started).endswith("54 of 56 tensors are loaded; new: head.weight, head.bias.")
    assert all(torch.equal(old[key], tensor) for key, tensor in model.state_dict().items() if key in started.loaded)
    assert torch.equal(model.get_classifier().state_dict()["weight"], head)


def test_positions_and_input_channels_are_adapted(tmp_path: Path) -> None:
    old = saved(tmp_path / "w.safetensors")
    grey = stepsnet.create_model("test_deit", in_chans=1, img_size=48)
    started = stepsnet.load_pretrained(grey, tmp_path / "w.safetensors")
    assert set(started.resized) == {"pos_embed", "patch_embed.proj.weight"}
    image = torch.randn(2, 1, 48, 48)
    with torch.no_grad():  # a grey image in three equal channels
        torch.testing.assert_close(grey.eval()(image), old.eval()(image.expand(-1, 3, -1, -1)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "test_resnet"}, "is a test_deit, not a test_resnet; give model=test_deit"),
        ({"plan": "16x4, 32x2"}, "has the plan '32x4'"),
        ({"join": "matched_grad"}, "was trained with join=plain, but the run has join=matched_grad"),
        ({"patch_size": 16}, r"patch_embed.proj.weight is \(32, 3, 8, 8\) there, not \(32, 3, 16, 16\)"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    saved(tmp_path / "w.safetensors")
    model = stepsnet.create_model(**({"name": "test_deit"} | options))
    with pytest.raises(UsageError, match=sentence):
        stepsnet.load_pretrained(model, tmp_path / "w.safetensors")


def test_weights_with_more_blocks_are_refused(tmp_path: Path) -> None:
    deep = stepsnet.create_model("test_deit", depth=5)
    safetensors.torch.save_file(deep.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match=r"it has net.steps.0.blocks.4.\S+ \(12 in all\), which the model"):
        stepsnet.load_pretrained(stepsnet.create_model("test_deit"), tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("name", "source", "sentence"),
    [
        ("test_deit", "nowhere", "There are no weights nowhere"),
        ("test_deit", "hf:nowhere", "needs config.json and model.safetensors"),
        ("test_deit", "timm:nowhere", "timm has no model 'nowhere'"),
        ("test_steps_deit", "timm:vit_tiny_patch16_224", "which has several steps"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(name: str, source: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        stepsnet.load_pretrained(stepsnet.create_model(name), source)


def test_weights_that_cannot_be_downloaded_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm", reason="the library whose weights are read")

    def offline(*_: object, **__: object) -> None:
        raise FileNotFoundError("no connection.\nmore")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UsageError, match=r"timm:resnet18 are not available \(no connection\.\)"):
        stepsnet.load_pretrained(stepsnet.create_model("test_resnet"), "timm:resnet18")


@pytest.mark.parametrize(
    ("name", "part", "learning"),
    [
        ("test_deit", "stem", {"net", "norm", "head"}),
        ("test_deit", "stage1", {"norm", "head"}),
        ("test_steps_deit", "8", {"norm", "head"}),
        ("test_deit", "body", {"head"}),
        ("test_resnet", "stage2", {"stages", "head"}),
    ],
)
def test_the_frozen_part_does_not_learn(name: str, part: str, learning: set[str]) -> None:
    model = stepsnet.create_model(name)
    names = stepsnet.freeze(model, part)
    left = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    assert {key.partition(".")[0] for key in left} == learning
    assert len(names) + len(left) == len(list(model.parameters()))
    assert not any(key.startswith(("stages.0.", "stages.1.")) for key in left)


@pytest.mark.parametrize("part", ["stage5", "9", "-1", "tail", ""])
def test_an_unknown_part_is_refused(part: str) -> None:
    with pytest.raises(UsageError, match="but must be stem, stage1, body, or up to 4 blocks"):
        stepsnet.freeze(stepsnet.create_model("test_deit"), part)
