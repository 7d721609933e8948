"""The convolutions for inference against the readable code beside them, and when they may stand in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from stepsnet.accel import conv_kernels, kernels
from stepsnet.models import create_model, fold
from stepsnet.models.model import Model


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Size]]:
    """The maps that went into the kernel."""
    seen: list[torch.Size] = []
    own = conv_kernels.convolve

    def watching(x: Tensor, layer: conv_kernels.ConvAndNorm, relu: bool, shortcut: Tensor | None = None) -> Tensor:
        seen.append(x.shape)
        return own(x, layer, relu, shortcut)

    monkeypatch.setattr(conv_kernels, "convolve", watching)
    return iter([seen])


def lively(name: str, bottleneck: bool = False, residual: str = "plain") -> Model:
    """A model whose batch norms do something."""
    torch.manual_seed(0)
    model = create_model(name, bottleneck=bottleneck, residual=residual).eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.1)
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return model


def both(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """With the kernel, and without it because gradients may be wanted."""
    with torch.no_grad():
        fast = model(x)
    return fast, model(x).detach()


@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("name", ["test_resnet", "test_steps_resnet"])
@pytest.mark.parametrize("side", [224, 33], ids=["large maps", "weights larger than maps"])
def test_outputs_agree(name: str, bottleneck: bool, side: int, calls: Iterator[list[torch.Size]]) -> None:
    model = lively(name, bottleneck)
    torch.testing.assert_close(*both(model, torch.randn(2, 3, side, side)), rtol=1e-5, atol=1e-5)
    shortcuts = sum(name.endswith("shortcut.conv") for name, _ in model.named_modules())
    assert len(next(calls)) == sum(isinstance(layer, nn.Conv2d) for layer in model.modules()) - shortcuts


def test_folded_models_agree(calls: Iterator[list[torch.Size]]) -> None:
    model, x = lively("test_steps_resnet"), torch.randn(2, 3, 64, 64)
    folded = fold(model)
    torch.testing.assert_close(*both(folded, x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-5, atol=1e-5)
    assert next(calls)


@pytest.mark.parametrize("residual", ["layerscale", "rezero", "deepnorm", "hyper"])
def test_other_residual_designs_keep_their_sum(residual: str) -> None:
    torch.testing.assert_close(*both(lively("test_resnet", residual=residual), torch.randn(2, 3, 64, 64)), rtol=1e-5, atol=1e-5)


def test_weights_may_change_between_calls() -> None:
    model, x = lively("test_resnet"), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = model(x)
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.mul_(0.5)
        assert not torch.allclose(model(x), before)
    torch.testing.assert_close(*both(model, x), rtol=1e-5, atol=1e-5)


WATCHED = (
    "stem",
    "stem.act",
    "stages.1.opening.branch",
    "stages.1.opening.branch.bn1",
    "stages.1.opening.shortcut",
    "stages.1.opening.shortcut.conv",
    "stages.1.opening.drop_path",
    "stages.3.net.steps.0.blocks.0.conv",
)


@pytest.mark.parametrize("layer", WATCHED)
def test_a_watched_layer_is_called(layer: str) -> None:
    model, seen = lively("test_resnet"), []
    model.get_submodule(layer).register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape))
    with torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
    assert len(seen) == 1


def test_who_watches_all_modules_sees_all_of_them() -> None:
    model, seen = lively("test_resnet"), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, _inputs, _output: seen.append(type(module)))
    with handle, torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
    assert seen.count(nn.BatchNorm2d) == sum(type(module) is nn.BatchNorm2d for module in model.modules())


class Halved(nn.Conv2d):
    """A convolution with a way of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


REPLACED = {
    "activation of the stem": ("stem.act", nn.SiLU()),
    "activation in a branch": ("stages.0.opening.branch.act", nn.SiLU()),
    "activation of a block": ("stages.3.net.steps.0.blocks.0.act", nn.SiLU()),
    "norm of a residual part": ("stages.3.net.steps.0.blocks.0.conv.norm", nn.BatchNorm2d(64)),
    "drop path at work": ("stages.0.opening.drop_path", nn.Hardtanh()),
    "shortcut of three": ("stages.1.opening.shortcut", nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16))),
    "no shortcut": ("stages.0.opening.shortcut", nn.Identity()),
    "short stem": ("stem", nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())),
    "stem of one": ("stem", nn.Conv2d(3, 8, 3, padding=1)),
    "bias before a norm": ("stem.conv", nn.Conv2d(3, 8, 7, 2, 3)),
    "padding by name": ("stages.0.opening.branch.conv1", nn.Conv2d(8, 8, 3, padding="same", bias=False)),
    "padding that reflects": ("stages.0.opening.branch.conv1", nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect", bias=False)),
    "norm without weights": ("stem.bn", nn.BatchNorm2d(8, affine=False)),
    "norm of the batch": ("stem.bn", nn.BatchNorm2d(8, track_running_stats=False)),
    "another norm": ("stem.bn", nn.GroupNorm(1, 8)),
    "a convolution of its own": ("stem.conv", Halved(3, 8, 7, 2, 3, bias=False)),
}


@pytest.mark.parametrize("replaced", REPLACED)
def test_what_users_put_in_place_of_a_part_is_what_runs(replaced: str) -> None:
    model = lively("test_resnet")
    name, module = REPLACED[replaced]
    owner, _, child = name.rpartition(".")
    setattr(model.get_submodule(owner), child, module.eval())
    if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
        nn.init.constant_(module.running_var, 3.0)
    torch.testing.assert_close(*both(model, torch.randn(2, 3, 64, 64)), rtol=1e-5, atol=1e-5)


def test_a_frozen_branch_beside_a_learning_shortcut_keeps_its_gradient() -> None:
    model = lively("test_resnet").requires_grad_(False)
    shortcut = model.get_submodule("stages.1.opening.shortcut.conv").requires_grad_()
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert shortcut.weight.grad is not None


def test_what_is_not_a_number_stays_so() -> None:
    model, x = lively("test_resnet"), torch.randn(2, 3, 64, 64)
    x[1, 0, 20, 20] = torch.nan
    with torch.no_grad():
        assert model(x).isnan().any(dim=1).tolist() == [False, True]
        model.get_parameter("stages.2.opening.branch.conv1.weight")[0, 0, 0, 0] = torch.nan
        assert model(x).isnan().all()


def test_training_statistics_still_move(calls: Iterator[list[torch.Size]]) -> None:
    model = lively("test_resnet").train()
    before = model.state_dict()["stem.bn.running_mean"].clone()
    with torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
    assert not torch.equal(model.state_dict()["stem.bn.running_mean"], before)
    assert not next(calls)


def test_those_who_count_operations_see_all_of_them() -> None:
    model, x = lively("test_resnet"), torch.randn(2, 3, 64, 64)
    totals = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad), FlopCounterMode(display=False) as counter:
            model(x)
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1] > 0


def test_double_precision_takes_the_readable_code() -> None:
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    assert kernels.applies(x)
    assert not conv_kernels.applies(x)
