"""`import stepsnet.timm`: what timm's own tests ask of a model holds for the registered ones, and timm's tools work."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stepsnet.timm
from stepsnet.errors import UsageError
from stepsnet.models import VisionModel, layer_ids, list_models, load_model, save_model
from tests.models.tiny import check_same, shake

timm: Any = import_module("timm")  # few of its names have types
optim: Any = import_module("timm.optim")
NAMES = stepsnet.timm.NAMES
TINY = [name for name in NAMES if name.startswith("test_")]
STEPS = [name for name in TINY if "steps" in name]
every_tiny = pytest.mark.parametrize("name", TINY)
every_steps = pytest.mark.parametrize("name", STEPS)


def make(name: str, **options: Any) -> VisionModel:
    model = timm.create_model(name, **options)
    assert isinstance(model, VisionModel)
    return model


def images(model: Any, batch: int = 2) -> Tensor:
    return torch.randn(batch, *model.default_cfg["input_size"])


def test_every_vision_model_is_registered_unless_timm_has_its_name() -> None:
    left = {name for name in list_models() if "transformer" not in name} - set(NAMES)
    assert left == {"resnet18", "resnet34", "resnet50", "test_resnet"}
    assert timm.list_models("steps_*") == sorted(list_models("steps_*", exclude_filters="*transformer*"), key=str.lower)
    assert isinstance(timm.create_model("test_resnet"), timm.models.ResNet)
    assert all(name in stepsnet.timm.__all__ for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_registered_configuration_is_that_of_the_model(name: str) -> None:
    told = timm.get_pretrained_cfg(name).to_dict()
    own = stepsnet.create_model(name, device="meta")
    shared = ["input_size", "num_classes", "first_conv", *(() if "file" in told else ("mean", "std"))]
    assert {key: own.default_cfg[key] for key in shared} == {key: told[key] for key in shared}
    assert told["architecture"] == name
    for layer in (told["first_conv"], told["classifier"]):
        assert f"{layer}.weight" in own.state_dict()


@every_tiny
def test_features_head_and_pooling(name: str) -> None:
    model = make(name).eval()
    x = images(model)
    features = model.forward_features(x)
    assert features.shape[{"NCHW": 1, "NHWC": 3, "NLC": 2}[model.output_fmt]] == model.num_features
    if model.default_cfg["pool_size"] is not None:
        sides = features.shape[1:3] if model.output_fmt == "NHWC" else features.shape[2:]
        assert tuple(sides) == model.default_cfg["pool_size"]
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.head_hidden_size)
    model.reset_classifier(0)
    assert torch.equal(model(x), pooled)
    model.reset_classifier(0, "")
    assert model(x).shape == features.shape
    assert make(name, num_classes=0, global_pool="")(x).shape == features.shape


@every_tiny
def test_maps_of_features_only_have_the_channels_and_strides_of_feature_info(name: str) -> None:
    model: Any = timm.create_model(name, features_only=True).eval()
    maps = model(images(model))
    assert [found.shape[1] for found in maps] == model.feature_info.channels()
    assert [found.shape[2] for found in maps] == [-(-32 // stride) for stride in model.feature_info.reduction()]
    assert len(maps) == (3 if "deit" in name else 4 if "swin" in name else 5)


@every_tiny
def test_intermediates_end_in_the_features_also_with_checkpointing(name: str) -> None:
    model = make(name).eval()
    x = images(model)
    last, maps = model.forward_intermediates(x, output_fmt="NCHW")
    assert torch.equal(last, model.forward_features(x))
    assert [found.shape[1] for found in maps] == timm.models.FeatureInfo(model.feature_info, len(maps)).channels()
    model.train().set_grad_checkpointing()
    again = model.forward_intermediates(x)[1]
    assert [found.shape for found in again] == [found.shape for found in maps]


# "list" and "dict" rebuild a network from its modules, which works for no Vision Transformer, also not for timm's.
EXTRACTORS = [
    (name, kind)
    for name in STEPS
    for kind in ("hook", "getter", "list", "dict")
    if kind in ("hook", "getter") or "deit" not in name
]


@pytest.mark.parametrize(("name", "kind"), EXTRACTORS)
def test_timms_feature_extractors(name: str, kind: str) -> None:
    model: Any = timm.create_model(name, features_only=True, feature_cls=kind, out_indices=(1, 2)).eval()
    maps = model(images(model))
    assert len(maps) == 2
    if kind == "getter":
        assert [found.shape[1] for found in maps] == model.feature_info.channels()


def test_resnet_maps_begin_with_the_stem_as_in_timm() -> None:
    ours, theirs = (timm.create_model(name, features_only=True) for name in ("test_steps_resnet", "resnet18"))
    assert ours.feature_info.reduction() == theirs.feature_info.reduction()
    chosen = timm.create_model("test_steps_resnet", features_only=True, out_indices=(1, 2, 3))
    assert chosen.feature_info.reduction() == [4, 8, 16]


@every_tiny
def test_timms_layers_are_ours(name: str) -> None:
    model = make(name, plan=2)
    assert timm.models.group_parameters(model, model.group_matcher(), reverse=True) == layer_ids(model)
    assert "head" in timm.models.group_modules(model, model.group_matcher())[len(model.blocks_in_order()) + 1]
    stages = len(model.plans) if len(model.plans) > 1 else len(model.blocks_in_order())
    assert len(timm.models.group_parameters(model, model.group_matcher(coarse=True))) == stages + 2


def test_layer_decay_reaches_timms_optimiser() -> None:
    model = make("test_steps_deit")
    scales = {group["lr_scale"] for group in optim.param_groups_layer_decay(model, layer_decay=0.5)}
    assert scales == {0.5**layer for layer in range(10)}
    optimiser = optim.create_optimizer_v2(model, opt="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    decays = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    assert decays[id(model.get_parameter("pos_embed"))] == 0.0


@every_steps
def test_the_data_config_is_that_of_the_model(name: str) -> None:
    assert timm.data.resolve_model_data_config(make(name))["input_size"] == (3, 32, 32)
    config = timm.data.resolve_model_data_config(make(name, img_size=64))
    assert config["input_size"] == (3, 64, 64)
    from PIL import Image

    transform = timm.data.create_transform(**config)
    assert transform(Image.new("RGB", (80, 70))).shape == (3, 64, 64)


@pytest.mark.parametrize("safe", [True, False])
@every_steps
def test_a_folder_of_timm_gives_the_same_model(name: str, safe: bool, tmp_path: Path) -> None:
    model = shake(make(name, plan=2, num_classes=5)).eval()
    labels = ["a", "b", "c", "d", "e"]
    timm.models.save_for_hf(
        model,
        str(tmp_path),
        model_config={"label_names": labels},
        model_args=stepsnet.timm.model_args(model),
        safe_serialization=safe,
    )
    again = make(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert again.plan == model.plan
    assert again.pretrained_cfg["label_names"] == labels
    check_same(again, model, images(model))
    fewer = make(f"local-dir:{tmp_path}", pretrained=True, num_classes=2)
    assert fewer(images(model)).shape == (2, 2)
    features: Any = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, features_only=True, in_chans=1)
    assert len(features(torch.randn(2, 1, 32, 32))) == len(features.feature_info.channels())


def test_the_hub_is_asked_for_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("test_steps_swin", plan=2).eval()
    timm.models.save_for_hf(model, str(tmp_path), model_args=stepsnet.timm.model_args(model), safe_serialization=True)
    monkeypatch.setattr(
        "timm.models._hub.hf_hub_download",
        lambda *args, filename=None, **_: str(tmp_path / (filename or args[1])),
    )
    check_same(make("hf-hub:someone/model", pretrained=True).eval(), model, images(model))


@every_steps
def test_checkpoints_of_both_libraries_load(name: str, tmp_path: Path) -> None:
    model = shake(make(name)).eval()
    save_model(model, tmp_path / "ours.safetensors")
    other = make(name, checkpoint_path=str(tmp_path / "ours.safetensors")).eval()
    check_same(other, model, images(model))
    check_same(load_model(tmp_path / "ours.safetensors").eval(), model, images(model))
    saver = timm.utils.CheckpointSaver(
        model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path)
    )
    saver.save_checkpoint(0, metric=1.0)
    third = make(name).eval()
    timm.models.load_checkpoint(third, str(tmp_path / "last.pth.tar"))
    check_same(third, model, images(model))


def test_the_moving_average_of_timm() -> None:
    model = make("test_steps_deit")
    average: Any = timm.utils.ModelEmaV3(model, decay=0.5)
    with torch.no_grad():
        model.get_parameter("cls_token").add_(1.0)
    average.update(model)
    torch.testing.assert_close(average.module.cls_token, model.get_parameter("cls_token") - 0.5)


@every_steps
def test_an_overlay_changes_the_configuration(name: str) -> None:
    model = make(name, pretrained_cfg_overlay={"mean": (0.5, 0.5, 0.5)}, dynamic_img_size=True)
    assert model.default_cfg["mean"] == model.pretrained_cfg["mean"] == (0.5, 0.5, 0.5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="takes images of any size: dynamic_img_size is always True"):
        make("test_steps_deit", dynamic_img_size=False)
    with pytest.raises(UsageError, match="no option 'num_heads'"):
        make("test_steps_deit", num_heads=3)


def test_the_weights_of_the_package_load_through_timm() -> None:
    model = make("steps_resnet_mini", pretrained=True).eval()
    check_same(model, stepsnet.create_model("steps_resnet_mini", pretrained=True).eval(), images(model))
    config = timm.data.resolve_model_data_config(model)
    assert (config["mean"], config["std"]) == ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
    assert model.pretrained_cfg["label_names"][3] == "cat"
    assert timm.list_models("steps_*", pretrained=True) == ["steps_resnet_mini"]
    other = make("steps_resnet_mini", pretrained=True, num_classes=3, in_chans=1)
    assert torch.equal(
        other.state_dict()["stages.0.opening.branch.conv1.weight"],
        model.state_dict()["stages.0.opening.branch.conv1.weight"],
    )
    assert other(torch.randn(2, 1, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "steps_resnet_mini"])
def test_pretrained_without_weights_is_one_sentence(name: str) -> None:
    with pytest.raises(UsageError, match=f"there are no pretrained weights of {name}, only of steps_resnet_mini"):
        make(name, pretrained=True)
