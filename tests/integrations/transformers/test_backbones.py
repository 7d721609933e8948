"""Our backbones in the library's detectors and segmenters, AutoBackbone of a folder, models over several devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import (
    AutoBackbone,
    DetrConfig,
    DetrForObjectDetection,
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    UperNetConfig,
    UperNetForSemanticSegmentation,
)

from stepsnet.integrations.transformers.auto import FAMILIES
from stepsnet.transformers import from_stepsnet
from tests.integrations.transformers.common import make_model
from tests.integrations.transformers.test_vision import close, make_images, make_native

STAGES = ["stage1", "stage2", "stage3", "stage4"]
hierarchical = pytest.mark.parametrize("family", ["swin", "swinpp", "resnet"])


def backbone_config(family: str, stages: list[str]) -> Any:
    return FAMILIES[family].config.from_model(make_native(f"test_steps_{family}"), out_features=stages)


def check_gradients(model: Any, loss: torch.Tensor) -> None:
    """A gradient reaches the first stage of the backbone, whose residual branches start at zero in ResNet."""
    loss.backward()
    first = [parameter for key, parameter in model.named_parameters() if "network.stages.0." in key]
    assert any(parameter.grad.abs().sum() > 0 for parameter in first)


@hierarchical
def test_upernet_trains(family: str) -> None:
    config = cast(Any, UperNetConfig)(
        backbone_config=backbone_config(family, STAGES), hidden_size=8, num_labels=3, use_auxiliary_head=False
    )
    model = cast(Any, UperNetForSemanticSegmentation(config)).train()
    check_gradients(model, model(make_images(), labels=torch.zeros(2, 32, 32, dtype=torch.long)).loss)


@hierarchical
def test_mask2former_trains(family: str, tmp_path: Path) -> None:
    config = cast(Any, Mask2FormerConfig)(
        backbone_config=backbone_config(family, STAGES), feature_size=32, mask_feature_size=32, hidden_dim=32,
        encoder_feedforward_dim=16, encoder_layers=1, decoder_layers=2, num_attention_heads=2, dim_feedforward=16,
        num_queries=4, num_labels=3, train_num_points=16,
    )  # fmt: skip
    model, images = cast(Any, Mask2FormerForUniversalSegmentation(config)), make_images()
    masks, classes = [torch.ones(1, 32, 32)] * 2, [torch.tensor([1])] * 2
    check_gradients(model, model(pixel_values=images, mask_labels=masks, class_labels=classes).loss)
    model.eval().save_pretrained(tmp_path)
    loaded = cast(Any, Mask2FormerForUniversalSegmentation).from_pretrained(tmp_path).eval()
    close(loaded(images).masks_queries_logits, model(images).masks_queries_logits)


@hierarchical
def test_detr_trains(family: str) -> None:
    config = cast(Any, DetrConfig)(
        use_timm_backbone=False, backbone_config=backbone_config(family, ["stage4"]), d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        num_queries=4, num_labels=3,
    )  # fmt: skip
    pytest.importorskip("scipy", reason="the library matches boxes with scipy")
    model = cast(Any, DetrForObjectDetection(config))
    targets = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.2]])}] * 2
    output = model(pixel_values=make_images(), labels=targets)
    assert output.logits.shape == (2, 4, 4)
    output.loss.backward()


def test_auto_backbone_loads_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the Hub for the name, and a local path is no name there. Given that answer, a folder loads."""
    native = make_native("test_steps_swin")
    cast(Any, from_stepsnet(native)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Repo id must be in the form"):
        AutoBackbone.from_pretrained(str(tmp_path))
    hub = type("Hub", (), {"repo_exists": lambda _self, _name: True})
    monkeypatch.setattr("transformers.models.auto.auto_factory.hf_api", hub)
    backbone = cast(Any, AutoBackbone).from_pretrained(str(tmp_path), out_features=STAGES).eval()
    expected = native.forward_intermediates(make_images(), 4, intermediates_only=True)
    for found, wanted in zip(backbone(make_images()).feature_maps, expected, strict=True):
        close(found, wanted)


@pytest.mark.parametrize("name", ["transformer", "deit", "swin", "swinpp", "resnet"])
def test_device_maps_do_not_split_blocks(name: str) -> None:
    accelerate = pytest.importorskip("accelerate", reason="pip install '.[transformers]'")
    model: Any = make_model() if name == "transformer" else from_stepsnet(make_native(f"test_steps_{name}"))
    blocks = {key for key, part in model.named_modules() if type(part).__name__ in model._no_split_modules}
    size = sum(parameter.nbytes for parameter in model.parameters())
    places = accelerate.infer_auto_device_map(
        model, max_memory={"cpu": int(size * 0.6), "disk": size}, no_split_module_classes=model._no_split_modules
    )
    assert set(places.values()) == {"cpu", "disk"}
    assert blocks
    assert not [key for key in places for block in blocks if key.startswith(f"{block}.")]
