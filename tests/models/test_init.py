"""The option `init`: the initialisation of linear layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from stepsnet.errors import UsageError
from stepsnet.models import Model, create_model, load_model, save_model


def spread(model: Model) -> list[float]:
    """The deviation of each linear layer's weights, as a multiple of Xavier's."""
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    return [
        float(layer.weight.detach().std()) / (2 / (layer.in_features + layer.out_features)) ** 0.5 for layer in layers
    ]


@pytest.mark.parametrize("name", ["test_steps_deit", "test_steps_swin", "test_steps_transformer"])
def test_xavier_initialises_linear_layers_only(name: str) -> None:
    torch.manual_seed(0)
    usual, other = create_model(name), create_model(name, init="xavier")
    assert spread(other) == pytest.approx([1.0] * len(spread(other)), rel=0.15)
    linear = {f"{key}.weight" for key, module in other.named_modules() if type(module) is nn.Linear}
    for key, parameter in usual.named_parameters():
        if key not in linear and parameter.unique().numel() == 1:
            assert torch.equal(parameter, other.get_parameter(key)), key


def test_init_applies_to_a_model_filled_later() -> None:
    model = create_model("test_deit", init="xavier", device="meta").to_empty(device="cpu")
    model.reset_parameters()
    assert spread(model) == pytest.approx([1.0] * len(spread(model)), rel=0.15)


class Ones(nn.Linear):
    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)


def test_custom_linear_layers_initialise_themselves() -> None:
    model = create_model("test_deit")
    model.head = Ones(32, 10, bias=False)
    model.reset_parameters()
    assert torch.equal(model.head.weight, torch.ones(10, 32))


def test_init_survives_saving_and_loading(tmp_path: Path) -> None:
    save_model(create_model("test_deit", init="xavier"), tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors")
    assert again.init == "xavier"
    assert again.default_cfg["options"]["init"] == "xavier"


def test_an_unknown_init_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no init 'xaver'.*xavier"):
        create_model("test_deit", init="xaver")
