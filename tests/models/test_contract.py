"""What holds for every model, tested on the tiny models of all families."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepsnet.models import create_model
from stepsnet.models.language import Transformer
from tests.macro.nets import outputs_of
from tests.models.tiny import TINY, VARIANTS, VISION, example, shake, variant, vision

every_variant = pytest.mark.parametrize("key", VARIANTS)
every_model = pytest.mark.parametrize("name", TINY)
every_vision_model = pytest.mark.parametrize("name", VISION)


@every_variant
@pytest.mark.parametrize("size", [(32, 32), (64, 40), (37, 51)], ids=str)
def test_images_and_texts_of_any_size_are_accepted(key: str, size: tuple[int, int]) -> None:
    model = variant(key)
    x = example(model, *size)
    logits = model(x)
    assert logits.shape == ((2, size[0], model.vocab_size) if isinstance(model, Transformer) else (2, 10))
    assert logits.isfinite().all()


@every_variant
def test_every_parameter_gets_a_finite_gradient(key: str) -> None:
    model = shake(variant(key))
    model(example(model)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("name", [name for name in TINY if "steps" not in name])
def test_one_step_of_the_reverse_is_the_baseline(name: str) -> None:
    forward, reverse = create_model(name), create_model(name, macro="reverse")
    reverse.load_state_dict(forward.state_dict())
    x = example(forward)
    assert torch.equal(forward.eval()(x), reverse.eval()(x))


@every_variant
@pytest.mark.parametrize("way", ["autocast", "bfloat16 weights"])
@torch.no_grad()
def test_bfloat16_gives_nearly_the_same(key: str, way: str) -> None:
    model = shake(variant(key)).eval()
    x = example(model)
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        found = model(x) if way == "autocast" else model.bfloat16()(x.bfloat16() if x.is_floating_point() else x)
    assert (found - expected).abs().max() < 0.06 * expected.abs().max()


@every_variant
def test_checkpointing_changes_no_gradient(key: str) -> None:
    model = shake(variant(key))
    x = example(model)
    gradients = []
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        model(x).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


@every_model
def test_checkpointing_keeps_fewer_activations(name: str) -> None:
    kept = []
    for checkpointing in (False, True):
        model = create_model(name)
        model.set_grad_checkpointing(checkpointing)
        sizes = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal sizes
            sizes += tensor.numel() * (not isinstance(tensor, nn.Parameter))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(example(model))
        kept.append(sizes)
    assert kept[1] < 0.9 * kept[0]


@every_vision_model
def test_default_cfg_has_the_input_size_and_normalisation(name: str) -> None:
    model = vision(name, num_classes=7)
    config = model.default_cfg
    assert config["input_size"] == (3, 32, 32)
    assert config["num_classes"] == 7
    assert config["architecture"] == name
    assert config["family"] in name
    assert len(config["mean"]) == len(config["std"]) == 3


@every_vision_model
def test_head_and_features_are_the_two_halves_of_forward(name: str) -> None:
    model = shake(vision(name)).eval()
    x = example(model)
    features = model.forward_features(x)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    assert torch.equal(model.forward_head(features), model(x))
    assert torch.equal(model.get_classifier()(pooled), model(x))


@every_vision_model
def test_a_new_classifier(name: str) -> None:
    model = vision(name)
    model.reset_classifier(3)
    assert model(example(model)).shape == (2, 3)
    assert model.num_classes == 3
    model.reset_classifier(0)
    assert model(example(model)).shape == (2, model.num_features)
    assert isinstance(model.get_classifier(), nn.Identity)


@every_vision_model
def test_a_new_classifier_has_the_dtype_of_the_model(name: str) -> None:
    model = vision(name).to(torch.float64)
    model.reset_classifier(3)
    assert model(example(model).double()).dtype == torch.float64


@pytest.mark.parametrize("name", ["test_resnet", "test_steps_resnet"])
def test_channels_last_gives_the_same(name: str) -> None:
    model = shake(vision(name)).eval()
    x = example(model)
    expected = model(x)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    with outputs_of(model.blocks_in_order()) as outputs:
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected)
    assert all(output.is_contiguous(memory_format=torch.channels_last) for output in outputs)
