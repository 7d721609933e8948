"""The convolutions for inference against the readable code beside them, and when they may stand in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from stepsnet.blocks import conv_kernels, kernels
from stepsnet.families import create_model, fold
from stepsnet.families.model import Model


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
    assert len(next(calls)) == sum(isinstance(layer, nn.Conv2d) for layer in model.modules())


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


WATCHED = ("stem.act", "stages.1.opening.branch.bn1", "stages.1.opening.shortcut.conv", "stages.3.net.steps.0.blocks.0.conv")


@pytest.mark.parametrize("layer", WATCHED)
def test_a_watched_layer_is_called(layer: str) -> None:
    model, seen = lively("test_resnet"), []
    model.get_submodule(layer).register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape))
    with torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
    assert len(seen) == 1


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
