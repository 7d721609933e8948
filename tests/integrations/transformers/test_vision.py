"""Vision models behind the library's classes: equal outputs, folders, backbones, pipelines and training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoBackbone,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    Trainer,
    TrainingArguments,
    UperNetConfig,
    UperNetForSemanticSegmentation,
    pipeline,
)

from stepsnet.data.images.datasets import FullTransform
from stepsnet.errors import UsageError
from stepsnet.integrations.transformers.auto import FAMILIES
from stepsnet.models import VisionModel, create_model, save_model
from stepsnet.models.vision import IMAGENET_MEAN, IMAGENET_STD
from stepsnet.transformers import (
    StepsDeiTConfig,
    StepsSwinBackbone,
    StepsSwinConfig,
    from_run,
    from_stepsnet,
    make_image_processor,
    to_stepsnet,
)

NAMES = ("test_steps_deit", "test_steps_swin", "test_steps_swinpp", "test_steps_resnet")
every_family = pytest.mark.parametrize("name", NAMES)


def make_native(name: str, **options: Any) -> VisionModel:
    """A model in evaluation mode that has trained for nothing, but with no zero weights."""
    torch.manual_seed(0)
    model = create_model(name, **options).eval()
    assert isinstance(model, VisionModel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def make_images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@every_family
def test_a_saved_folder_has_the_native_model(name: str, tmp_path: Path) -> None:
    native, images = make_native(name, global_pool="avg"), make_images()
    converted = cast(Any, from_stepsnet(native))
    close(converted(images).logits, native(images))
    converted.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    close(loaded(images).logits, native(images))
    again = to_stepsnet(loaded)
    close(again(images), native(images))
    assert again.default_cfg["architecture"] == name
    assert again.plan == native.plan
    base = AutoModel.from_pretrained(tmp_path).eval()
    found = base(images, output_hidden_states=True)
    close(found.pooler_output, native.forward_head(native.forward_features(images), pre_logits=True))
    close(found.hidden_states[-1], native.forward_intermediates(images, 1, intermediates_only=True)[0])
    assert len(found.hidden_states) == len(base.config.stage_names)


@pytest.mark.parametrize(
    ("name", "options"), [("test_steps_resnet", {"stem_stride": 1}), ("test_steps_swin", {"window_size": 2})], ids=str
)
def test_options_of_a_family_survive_saving(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    native, images = make_native(name, **options), make_images()
    cast(Any, from_stepsnet(native)).save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    close(loaded(images).logits, native(images))


@every_family
def test_the_first_hidden_state_has_a_gradient(name: str) -> None:
    model = AutoModel.from_config(from_stepsnet(make_native(name)).config)
    found = model(make_images(), output_hidden_states=True)
    found.hidden_states[0].retain_grad()
    found.pooler_output.sum().backward()
    assert found.hidden_states[0].dim() == 4
    assert found.hidden_states[0].grad is not None


@every_family
def test_new_models_start_as_native_ones(name: str) -> None:
    """Constant tensors are equal (biases, norms, the last gain of a block); large random ones have equal deviations."""
    native = create_model(name)
    classes = FAMILIES[native.family]
    new = classes.main(classes.config.from_model(native)).model.network.state_dict()
    expected = native.state_dict()
    for key, tensor in new.items():
        if (expected[key] == expected[key].flatten()[0]).all():
            assert torch.equal(tensor, expected[key]), key
        elif tensor.numel() > 200:
            assert tensor.std().item() == pytest.approx(expected[key].std().item(), rel=0.3), key


@pytest.mark.parametrize(
    "name", ["deit_tiny", "steps_deit_deep_d24", "swin_tiny", "steps_swinpp_tiny", "steps_resnet18", "steps_resnet50"]
)
def test_configurations_build_the_registered_networks(name: str) -> None:
    native = create_model(name, device="meta", num_classes=7)
    config = FAMILIES[native.family].config.from_model(native)
    assert config.num_labels == 7
    with torch.device("meta"):
        built = config.build()
    shapes = {key: tensor.shape for key, tensor in built.state_dict().items()}
    assert shapes == {key: tensor.shape for key, tensor in native.state_dict().items() if not key.startswith("head.")}
    assert config.hidden_size == native.num_features


@pytest.mark.parametrize("family", ["deit", "swin", "swinpp", "resnet"])
def test_default_configurations_are_those_of_their_registered_models(family: str) -> None:
    config = FAMILIES[family].config
    assert config(num_labels=1000).options() == config.from_name(config().architecture).options()


@every_family
def test_a_backbone_returns_the_maps_of_its_stages(name: str) -> None:
    native, images = make_native(name), make_images()
    config = FAMILIES[native.family].config.from_model(native, out_features=["stem", "stage1", "stage3"])
    backbone = cast(Any, AutoBackbone.from_config(config)).eval()
    backbone.network.load_state_dict(native.state_dict(), strict=False)
    maps = backbone(images).feature_maps
    assert [found.shape[1] for found in maps] == backbone.channels
    stages = native.forward_intermediates(images, len(config.stage_names) - 1, intermediates_only=True)
    close(maps[1], stages[0])
    close(maps[2], stages[2])


def test_a_backbone_loads_the_folder_of_a_classifier_and_serves_upernet(tmp_path: Path) -> None:
    native, images = make_native("test_steps_swin"), make_images()
    cast(Any, from_stepsnet(native)).save_pretrained(tmp_path)
    names = ["stage1", "stage2", "stage3", "stage4"]
    backbone = cast(Any, StepsSwinBackbone).from_pretrained(tmp_path, out_features=names).eval()
    for found, expected in zip(
        backbone(images).feature_maps, native.forward_intermediates(images, 4, intermediates_only=True), strict=True
    ):
        close(found, expected)
    config = cast(Any, UperNetConfig)(
        backbone_config=backbone.config, hidden_size=8, num_labels=3, pool_scales=[1, 2], use_auxiliary_head=False
    )
    segmenter = cast(Any, UperNetForSemanticSegmentation(config)).eval()
    assert segmenter(images).logits.shape == (2, 3, 32, 32)


@every_family
def test_checkpointed_blocks_give_the_same_gradients(name: str) -> None:
    model, images = cast(Any, from_stepsnet(make_native(name))), make_images()
    key = next(key for key, _ in model.named_parameters() if "steps.0.blocks.0" in key)

    def gradient() -> Tensor:
        model.zero_grad()
        model(images, labels=torch.tensor([1, 2])).loss.backward()
        return model.get_parameter(key).grad.clone()

    model.train()
    plain = gradient()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    torch.testing.assert_close(gradient(), plain, rtol=1e-4, atol=1e-6)  # norms over batches add in another order


def test_the_image_processor_is_our_evaluation_transform() -> None:
    model = make_native("test_steps_deit")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 40, 3), dtype=np.uint8))
    found = make_image_processor(model)(image, return_tensors="pt")["pixel_values"][0]
    expected = FullTransform(None, 32, 0.875, IMAGENET_MEAN, IMAGENET_STD)(image, 0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_grey_images_are_refused() -> None:
    with pytest.raises(UsageError, match="not for 1 channels"):
        make_image_processor(make_native("test_steps_deit"), mean=[0.5], std=[0.5])


def test_a_run_becomes_a_folder_for_a_pipeline(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "folder"
    run.mkdir()
    native = make_native("test_steps_deit", num_classes=3)
    save_model(native, run / "weights.safetensors")
    (run / "config.json").write_text(json.dumps({"task": "classification", "data": {"crop_pct": 1.0}}))
    facts = {"classes": ["ant", "bee", "cat"], "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    (run / "classes.json").write_text(json.dumps(facts))
    model, processor = from_run(run)
    cast(Any, model).save_pretrained(folder)
    processor.save_pretrained(folder)

    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8))
    found = cast(Any, pipeline)("image-classification", model=str(folder))(image)
    expected = native(FullTransform(None, 32, 1.0, IMAGENET_MEAN, IMAGENET_STD)(image, 0)[None]).softmax(-1)[0]
    assert {entry["label"]: entry["score"] for entry in found} == {
        name: pytest.approx(share.item(), abs=1e-5) for name, share in zip(facts["classes"], expected, strict=True)
    }
    assert AutoImageProcessor.from_pretrained(folder).crop_size == {"height": 32, "width": 32}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_trainer_trains_a_classifier(tmp_path: Path) -> None:
    model = cast(Any, from_stepsnet(make_native("test_steps_resnet", num_classes=2))).train()
    rows = [{"pixel_values": make_images(1)[0] + number % 2, "labels": number % 2} for number in range(16)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=10, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=1,
        save_steps=10, report_to=[], use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=cast(Any, rows))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path / "checkpoint-10")
    assert all(torch.equal(tensor, loaded.state_dict()[key]) for key, tensor in model.state_dict().items())


def test_a_configuration_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match="test_swin is of the family swin; StepsDeiTConfig is for deit"):
        StepsDeiTConfig.from_name("test_swin")


def test_an_unknown_map_is_refused() -> None:
    with pytest.raises(ValueError, match="out_features must be a subset"):
        StepsSwinConfig.from_name("test_swin", plan=1).out_features = ["stage9"]
