"""Initialisation: as in DeiT, and equal for new models, models from the meta device and models that are reset."""

from __future__ import annotations

import pytest
import torch

from stepsnet.models import create_model
from tests.models.tiny import TINY, VARIANTS, example, variant

every_variant = pytest.mark.parametrize("key", VARIANTS)
every_model = pytest.mark.parametrize("name", TINY)


@every_variant
def test_a_model_made_on_the_meta_device_is_filled_like_any_other(key: str) -> None:
    hollow = variant(key, device="meta")
    assert all(tensor.is_meta for tensor in hollow.state_dict().values())
    hollow.to_empty(device="cpu")
    for tensor in hollow.state_dict().values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
    usual = variant(key)
    for model in (hollow, usual):
        torch.manual_seed(3)
        model.reset_parameters()
    filled = hollow.state_dict()
    assert [name for name, tensor in usual.state_dict().items() if not torch.equal(tensor, filled[name])] == []
    assert hollow(example(hollow)).isfinite().all()


@every_model
def test_a_model_can_be_made_inside_accelerates_init_empty_weights(name: str) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    with accelerate.init_empty_weights():
        model = create_model(name)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    model.reset_parameters()
    assert model(example(model)).isfinite().all()


@every_model
def test_resetting_initialises_a_trained_model_again(name: str) -> None:
    model = create_model(name)
    torch.manual_seed(1)
    model.reset_parameters()
    first = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model(example(model)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    torch.manual_seed(1)
    model.reset_parameters()
    assert all(torch.equal(tensor, first[key]) for key, tensor in model.state_dict().items())


@every_variant
def test_every_module_that_holds_parameters_can_reset_them(key: str) -> None:
    for name, module in variant(key).named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            assert callable(getattr(module, "reset_parameters", None)), name


@pytest.mark.parametrize("again", [False, True], ids=["made", "reset"])
@pytest.mark.parametrize("name", ["deit_tiny", "swin_tiny", "transformer_30m"])
def test_transformers_are_initialised_as_deit(name: str, again: bool) -> None:
    model = create_model(name, plan=2)
    if again:
        model.reset_parameters()
    for key, parameter in model.named_parameters():
        if key.startswith("patch_embed.proj"):
            continue  # a convolution, which DeiT leaves to PyTorch
        if parameter.dim() > 1:
            noise = 5 / (2 * parameter.numel()) ** 0.5
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=noise), key
            assert abs(float(parameter.detach().mean())) < 0.02 * 2 * noise, key
        else:
            assert parameter.unique().tolist() == [1.0 if "norm" in key and key.endswith("weight") else 0.0], key
