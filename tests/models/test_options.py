"""Options of `create_model`: plans in every form, and the options of the families."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from stepsnet.macro import StepPlan
from stepsnet.models import ModelOptions, create_model, get_variant, list_models
from stepsnet.models.design import PlanLike
from stepsnet.models.model import freeze
from tests.models.tiny import TINY, VISION, example, shake, vision

every_vision_model = pytest.mark.parametrize("name", VISION)


def test_the_options_with_types_are_those_of_the_families() -> None:
    taken = {option for name in list_models() for option in inspect.signature(get_variant(name).family).parameters}
    every_model = {"plan", "join", "macro", "residual", "drop_path_rate", "init"}
    assert set(ModelOptions.__annotations__) == taken - {"design"} | every_model


@pytest.mark.parametrize("name", [name for name in list_models() if name.startswith("steps_") and "_d" not in name])
def test_a_twin_is_its_baseline_under_another_plan(name: str) -> None:
    twin = create_model(name, device="meta")
    same = create_model(name.removeprefix("steps_"), plan=twin.plan, device="meta")
    shapes, same_shapes = ({key: tensor.shape for key, tensor in model.state_dict().items()} for model in (twin, same))
    assert shapes == same_shapes


PLAN = StepPlan((16, 22, 32), (4, 2, 2))


@pytest.mark.parametrize("plan", [PLAN, str(PLAN), [PLAN], [str(PLAN)]])
def test_every_form_of_a_plan_is_accepted(plan: PlanLike) -> None:
    assert create_model("test_deit", plan=plan).plan == "16x4, 22x2, 32x2"


@pytest.mark.parametrize(
    ("name", "plan", "expected"),
    [
        ("deit_small", 3, "192x12, 272x6, 384x6"),
        ("deit_small", "3", "192x12, 272x6, 384x6"),
        ("deit_small", 1, "384x12"),
        ("steps_deit_small", 1, "384x12"),
        ("steps_deit_small", None, "192x12, 272x6, 384x6"),
        (
            "swin_tiny",
            [None, 1, 3, "192x4, 272x2, 384x2, 544x2"],
            "96x2; 192x2; 192x6, 272x3, 384x3; 192x4, 272x2, 384x2, 544x2",
        ),
        ("swin_tiny", "96x2; 192x2; 3; 544x4", "96x2; 192x2; 192x6, 272x3, 384x3; 544x4"),
        (
            "swin_tiny",
            2,
            "96x2; 192x2; 272x6, 384x3; 544x2, 768x1",
        ),  # the first two stages, which are narrow, stay plain
        ("resnet34", [None, None, 5, 7], create_model("steps_resnet34", device="meta").plan),
        ("transformer_63m", 3, "256x12, 368x6, 512x6"),
    ],
)
def test_numbers_of_steps_become_plans(name: str, plan: PlanLike, expected: str) -> None:
    assert create_model(name, plan=plan, device="meta").plan == expected


@every_vision_model
def test_images_with_other_channels(name: str) -> None:
    model = vision(name, in_chans=1)
    assert model.default_cfg["input_size"] == (1, 32, 32)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 10)


@every_vision_model
def test_img_size_may_have_two_sides(name: str) -> None:
    model = vision(name, img_size=(48, 64))
    assert model.input_size == (3, 48, 64)
    assert model(example(model, 48, 64)).shape == (2, 10)


@pytest.mark.parametrize("name", ["test_deit", "test_steps_swin"])
def test_patch_size(name: str) -> None:
    model = vision(name, patch_size=4)
    assert model.feature_info[0]["reduction"] == 4
    assert model(example(model)).shape == (2, 10)


@pytest.mark.parametrize("window", [3, 5, 7])
def test_window_size(window: int) -> None:
    model = vision("test_steps_swin", window_size=window)
    assert model.get_parameter("stages.0.net.steps.0.blocks.0.attn.branch.bias_table").shape[0] == (2 * window - 1) ** 2
    assert model(example(model)).isfinite().all()


POOLS = {"test_deit": ("token", "avg"), "test_swin": ("avg", "max"), "test_resnet": ("avg", "max")}


@pytest.mark.parametrize(("name", "pools"), POOLS.items())
def test_global_pool(name: str, pools: tuple[str, str]) -> None:
    first, second = (shake(vision(name, global_pool=pool)).eval() for pool in pools)
    second.load_state_dict(first.state_dict())
    x = example(first, 64)
    assert not torch.allclose(first(x), second(x))


@every_vision_model
def test_no_pool_returns_the_map(name: str) -> None:
    model = vision(name, global_pool="", num_classes=0).eval()
    x = example(model)
    assert torch.equal(model(x), model.forward_features(x))


def test_deit_learns_positions_for_its_own_size_and_interpolates_them_for_others() -> None:
    model = vision("test_deit").eval()
    assert model.get_parameter("pos_embed").shape == (1, 17, 32)
    with torch.no_grad():
        model.get_parameter("pos_embed").zero_()
        model.get_parameter("pos_embed")[:, 1:] = 3.0  # what is the same everywhere stays so
    outputs: list[Any] = []
    model.patch_embed.register_forward_hook(lambda _m, _i, output: output.zero_())  # type: ignore[union-attr]
    model.get_submodule("net").register_forward_pre_hook(lambda _m, inputs: outputs.append(inputs[0]))
    for side in (32, 56):
        model(torch.randn(1, 3, side, side))
    assert outputs[1].shape == (1, 1 + 7 * 7, 32)
    torch.testing.assert_close(outputs[1][:, 1:], torch.full((1, 49, 32), 3.0))


@pytest.mark.parametrize("name", ["test_steps_deit", "test_steps_swin", "test_steps_transformer"])
def test_head_dim_is_the_same_in_every_block(name: str) -> None:
    model = create_model(name, head_dim=2)
    dims = {dim for module in model.modules() if isinstance(dim := getattr(module, "head_dim", None), int)}
    assert dims == {2}
    assert model(example(model)).isfinite().all()


def test_resnet_with_bottlenecks_has_streams_four_times_as_wide() -> None:
    model = vision("test_steps_resnet", bottleneck=True)
    assert model.feature_info.channels() == [8, 32, 64, 128, 256]
    assert [net.widths for net in model.nets()] == [(32,), (64,), (64, 96, 128), (128, 192, 256)]
    assert model(example(model)).shape == (2, 10)


@pytest.mark.parametrize("name", ["test_resnet", "test_steps_resnet"])
def test_a_resnet_for_small_images_reduces_them_in_its_stages_only(name: str) -> None:
    model = vision(name, stem_stride=1)
    assert model.feature_info.reduction() == [1, 1, 2, 4, 8]
    _, maps = model.forward_intermediates(example(model))
    assert [found.shape[-1] for found in maps] == [32, 32, 16, 8, 4]


@pytest.mark.parametrize("name", TINY)
def test_a_join_with_parameters_in_every_family(name: str) -> None:
    class Scaled(nn.Module):
        """[y, g x] with one gain a channel, for a place it is told about."""

        def __init__(self, _y_width: int, x_width: int, channel_dim: int) -> None:
            super().__init__()
            self.channel_dim = channel_dim
            self.gain = nn.Parameter(torch.ones(x_width))

        def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            gains = self.gain.view([-1 if dim == self.channel_dim % x.dim() else 1 for dim in range(x.dim())])
            return torch.cat((y, gains * x), self.channel_dim)

    model, plain = create_model(name, join=Scaled).eval(), create_model(name).eval()
    model.load_state_dict(plain.state_dict(), strict=False)
    x = example(model)
    assert torch.equal(model(x), plain(x))
    model(x).sum().backward()
    gains = [parameter for key, parameter in model.named_parameters() if key.endswith("gain")]
    assert len(gains) == sum(len(plan) - 1 for plan in model.plans)
    assert all(gain.grad is not None for gain in gains)


def test_a_given_join_moves_to_the_device_of_the_model() -> None:
    model = create_model("test_steps_deit", join=nn.Linear(1, 1), device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_plan_may_have_no_blocks() -> None:
    assert create_model("test_deit", plan="32x0").eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_frozen_positions_stay_frozen_at_another_image_size() -> None:
    model = vision("test_deit")
    freeze(model, "stem")
    model.set_input_size(64)
    assert not model.get_parameter("pos_embed").requires_grad


def test_the_configuration_has_the_classes_of_the_new_head() -> None:
    model = create_model("test_deit", num_classes=10)
    model.reset_classifier(3)
    assert model.default_cfg["num_classes"] == 3
