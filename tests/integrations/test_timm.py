"""Our nine vision baselines have timm's logits to 1e-4; weights that do not fit are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.integrations.timm import load_timm_weights, timm_twin
from stepsnet.models import create_model

NAMES = {
    **{name: name for name in ("resnet18", "resnet34", "resnet50")},
    **{f"deit_{size}": f"deit_{size}_patch16_224" for size in ("tiny", "small", "base")},
    **{f"swin_{size}": f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base")},
}


def make_timm(name: str, **options: Any) -> Any:
    """timm's model with random norms: gains of 0 or 1 and running means of 0 would hide errors."""
    import timm

    model = timm.create_model(NAMES[name], **options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 1.5)
        for key, parameter in model.named_parameters():
            if key.endswith("relative_position_bias_table"):
                parameter.normal_()
    return model.eval()


@torch.no_grad()
def largest_difference(theirs: nn.Module, ours: nn.Module, side: int) -> float:
    """Largest difference of the logits, divided by their standard deviation if that is above 1.

    ResNet-50's logits exceed 1000 with these gains, and timm's own differ by 5e-4 from double precision.
    """
    image = torch.randn(1, 3, side, side)
    expected: Tensor = theirs(image)
    assert expected.std() > 0.1  # logits near zero would always agree
    return float((ours.eval()(image) - expected).abs().max() / expected.std().clamp_min(1.0))


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_timms_at_224_and_another_size(name: str) -> None:
    options = {"dynamic_img_size": True} if name.startswith("deit") else {}
    theirs, ours = make_timm(name, **options), create_model(name, device="meta")
    load_timm_weights(ours, theirs.state_dict())
    at_224 = largest_difference(theirs, ours, 224)
    other = 160
    if name.startswith("swin"):
        other = 256  # maps of 64, 32, 16 and 8: windows of 7 make all of them padded and shifted
        theirs.set_input_size(img_size=(other, other), window_size=(7, 7))
    assert max(at_224, largest_difference(theirs, ours, other)) < 1e-4


def test_the_comparison_detects_a_changed_weight() -> None:
    theirs, ours = make_timm("resnet18"), create_model("resnet18")
    load_timm_weights(ours, theirs.state_dict())
    with torch.no_grad():
        theirs.get_buffer("layer4.1.bn2.running_var").mul_(1.1)
    assert largest_difference(theirs, ours, 64) > 1e-4


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return dict(make_timm("resnet18").state_dict())


def test_the_error_names_a_missing_weight(weights: dict[str, Tensor]) -> None:
    del weights["layer2.1.conv1.weight"]
    with pytest.raises(
        UsageError, match=r"lack stages\.1\.net\.steps\.0\.blocks\.0\.conv\.branch\.conv1\.weight of resnet18"
    ):
        load_timm_weights(create_model("resnet18", device="meta"), weights)


def test_the_error_names_an_unknown_weight(weights: dict[str, Tensor]) -> None:
    with pytest.raises(UsageError, match=r"se_gate\.weight of timm's weights has no counterpart in resnet18"):
        load_timm_weights(create_model("resnet18", device="meta"), {**weights, "se_gate.weight": torch.ones(1)})


def test_the_error_names_a_weight_of_another_shape(weights: dict[str, Tensor]) -> None:
    with pytest.raises(
        UsageError, match=r"fc\.weight of timm's weights is \(1000, 512\), but head\.weight of resnet18 is \(10, 512\)"
    ):
        load_timm_weights(create_model("resnet18", num_classes=10, device="meta"), weights)


def test_a_model_that_timm_does_not_have_is_refused(weights: dict[str, Tensor]) -> None:
    with pytest.raises(UsageError, match="not for steps_resnet18 with plan '64x1; 128x1; 64x2"):
        load_timm_weights(create_model("steps_resnet18", device="meta"), weights)


def test_computed_tables_of_older_swin_checkpoints_are_ignored() -> None:
    theirs, ours = make_timm("swin_tiny"), create_model("swin_tiny")
    load_timm_weights(
        ours, {**theirs.state_dict(), "layers.0.blocks.0.attn.relative_position_index": torch.zeros(49, 49)}
    )


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_timms_model_of_a_deit_has_the_same_logits_for_both_pools(pool: str) -> None:
    model = create_model("test_deit", global_pool=pool).eval()
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(timm_twin(model).eval()(image), model(image), rtol=0, atol=1e-5)
