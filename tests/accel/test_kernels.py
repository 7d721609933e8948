"""The kernels for eager mode against the readable code beside them: values, every gradient, and when they may stand in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from stepsnet.accel import kernels
from stepsnet.blocks.mlp import Mlp
from stepsnet.blocks.window import WindowAttention, Windows, tables_of


def lively(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in layer.double().parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def values_and_gradients(function: Callable[[Tensor], Tensor], layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of an uneven function of it with respect to the input and every weight."""
    x = x.clone().requires_grad_()
    y = function(x)
    return [y, *torch.autograd.grad(y.square().cumsum(-1).sum(), [x, *layer.parameters()])]


@pytest.fixture(params=[kernels.PIECE_BYTES, 2**12], ids=["one piece", "many pieces"])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PIECE_BYTES", request.param)


@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("shape", [(2, 100, 6), (0, 6), (3, 5, 9, 6)], ids=str)
def test_the_mlp(shape: tuple[int, ...]) -> None:
    layer = lively(Mlp(6, 24))
    assert isinstance(layer, Mlp)
    x = torch.randn(shape, dtype=torch.float64)

    def readable(x: Tensor) -> Tensor:
        return layer.fc2(F.gelu(layer.fc1(x)))

    torch.testing.assert_close(values_and_gradients(layer, layer, x), values_and_gradients(readable, layer, x))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), readable(x))


@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (12, 8), (4, 4), (7, 9), (3, 9), (2, 3), (1, 1)], ids=str)
def test_window_attention(size: tuple[int, int], shifted: bool) -> None:
    layer = lively(WindowAttention(6, 2, window=4, shifted=shifted))
    assert isinstance(layer, WindowAttention)
    x = torch.randn(3, *size, 6, dtype=torch.float64)

    def readable(x: Tensor) -> Tensor:
        return layer.readable(x, Windows.over(*size, layer.window, layer.shift))

    torch.testing.assert_close(values_and_gradients(layer, layer, x), values_and_gradients(readable, layer, x))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), readable(x))


@pytest.mark.parametrize("shifted", [False, True])
def test_no_map_at_all_gives_none_and_no_gradient(shifted: bool) -> None:
    layer, x = WindowAttention(6, 2, window=4, shifted=shifted), torch.randn(0, 7, 9, 6)
    layer(x).sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in layer.parameters())
    with torch.no_grad():
        assert layer(x).shape == x.shape


def test_tables_made_during_inference_serve_in_training() -> None:
    tables_of.cache_clear()
    layer = WindowAttention(6, 2, window=4, shifted=True)
    with torch.inference_mode():
        layer(torch.randn(1, 8, 8, 6))
    layer(torch.randn(1, 8, 8, 6)).sum().backward()
    assert layer.bias_table.grad is not None


def test_a_watched_layer_is_called() -> None:
    layer = Mlp(4, 8)
    seen: list[torch.Size] = []
    layer.fc1.register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape))
    layer(torch.randn(3, 4))
    assert seen == [torch.Size([3, 8])]


def test_a_watched_layer_of_attention_is_called_once_with_all_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PIECE_BYTES", 2**8)
    layer, seen = WindowAttention(6, 2, window=4, shifted=True), []
    layer.proj.register_forward_hook(lambda _module, _inputs, output: seen.append(output.numel()))
    x = torch.randn(3, 8, 8, 6)
    with torch.no_grad():
        layer(x)
    assert seen == [x.numel()]


def test_a_forward_put_in_place_of_a_layers_own_is_called() -> None:
    layer = Mlp(4, 8)
    layer.fc2.forward = torch.zeros_like  # type: ignore[method-assign]
    assert torch.equal(layer(torch.randn(3, 4)), torch.zeros(3, 8))


def test_a_layer_without_a_bias_is_called() -> None:
    layer = Mlp(4, 8)
    layer.fc1.register_parameter("bias", None)
    assert layer(torch.randn(3, 4)).shape == (3, 4)


def test_tables_are_real_whatever_new_tensors_are_made() -> None:
    tables_of.cache_clear()
    layer, x = WindowAttention(6, 2, window=4, shifted=True), torch.randn(1, 8, 8, 6)
    expected = layer.readable(x, Windows.over(8, 8, layer.window, layer.shift))
    with torch.device("meta"):
        torch.testing.assert_close(layer(x), expected)


def test_fake_tensors_leave_no_tables_behind() -> None:
    tables_of.cache_clear()
    layer = WindowAttention(6, 2, window=4, shifted=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer(torch.randn(1, 8, 8, 6))
    assert type(layer(torch.randn(1, 8, 8, 6))) is Tensor


@pytest.mark.usefixtures("_pieces")
@pytest.mark.parametrize("layer", [Mlp(6, 24), WindowAttention(6, 2, window=4, shifted=True)], ids=["mlp", "attention"])
def test_gradients_can_be_differentiated_again(layer: Mlp | WindowAttention) -> None:
    lively(layer)
    layer.get_parameter("fc1.bias" if isinstance(layer, Mlp) else "qkv.bias").requires_grad_(False)
    x = torch.randn(3, 7, 9, 6, dtype=torch.float64, requires_grad=True)

    def readable(x: Tensor) -> Tensor:
        return layer.fc2(F.gelu(layer.fc1(x))) if isinstance(layer, Mlp) else layer.readable(x, Windows.over(7, 9, 4, layer.shift))

    def second(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        learned = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
        first = torch.autograd.grad(function(x).square().cumsum(-1).sum(), learned, create_graph=True)
        return torch.autograd.grad(sum((gradient.sin().sum() for gradient in first), torch.zeros(())), learned)

    with sdpa_kernel(SDPBackend.MATH):  # the readable attention's fused backward pass has no second derivative either
        expected = second(readable)
    torch.testing.assert_close(second(layer), expected)


def test_a_replaced_layer_is_called() -> None:
    layer = Mlp(4, 8)
    layer.fc2 = nn.Sequential(layer.fc2, nn.Flatten(0))  # type: ignore[assignment]
    assert layer(torch.randn(3, 4)).shape == (12,)


def test_function_transforms_take_the_readable_code() -> None:
    layer = WindowAttention(4, 1, window=2, shifted=True)
    x = torch.randn(2, 1, 4, 4, 4)
    torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(one) for one in x]))


def test_under_autocast_the_readable_code_computes_in_bf16() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert Mlp(4, 8)(torch.randn(3, 4)).dtype is torch.bfloat16
        assert WindowAttention(4, 1, window=2, shifted=True)(torch.randn(1, 4, 4, 4)).dtype is torch.bfloat16


def test_a_large_mlp_keeps_its_input_and_one_hidden_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PIECE_BYTES", 2**10)
    layer, x = Mlp(16, 64), torch.randn(10, 16, requires_grad=True)
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    weights = [tuple(parameter.shape) for parameter in layer.parameters()]
    assert sorted(kept) == sorted([(10, 16), (10, 64), *weights])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch itself, which loads its rules so
def test_derivatives_in_forward_mode_take_the_readable_code() -> None:
    mlp, x = Mlp(8, 32), torch.randn(2, 5, 8)
    with forward_ad.dual_level():
        y = forward_ad.unpack_dual(mlp(forward_ad.make_dual(x, torch.ones_like(x))))
    assert y.tangent is not None
    expected = torch.func.jvp(mlp, (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(y.tangent, expected)


@pytest.mark.parametrize("layer", [Mlp(6, 24), WindowAttention(6, 2, window=4, shifted=True)], ids=["mlp", "attention"])
def test_many_gradients_at_once(layer: Mlp | WindowAttention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PIECE_BYTES", 2**8)
    lively(layer)
    x = torch.randn(2, 8, 8, 6, dtype=torch.float64, requires_grad=True)
    y, directions = layer(x), torch.randn(3, 2, 8, 8, 6, dtype=torch.float64)
    (together,) = torch.autograd.grad(y, x, directions, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, x, direction, retain_graph=True)[0] for direction in directions]
    torch.testing.assert_close(together, torch.stack(single))
