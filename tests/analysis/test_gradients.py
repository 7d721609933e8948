"""Gradient flow against values computed by hand, and against forward mode."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet.analysis import gradient_flow, shortcut_ratio
from stepsnet.analysis.gradients import probe_generator, random_class_loss
from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, Stack, StepsNet
from stepsnet.models import create_model
from tests.analysis.nets import Foreign, Linear, Scale, Shift, no_hooks


def constant_branches(widths: tuple[int, ...] = (4, 6)) -> StepsNet:
    return StepsNet([Stack([Shift(width, seed) for seed in (1, 2)]) for width in widths], widths)


def total(output: Tensor) -> Tensor:
    return output.sum()


def test_with_constant_branches_the_gradient_is_gamma() -> None:
    net = constant_branches()
    x = torch.randn(3, 5, 6)
    found = gradient_flow(net, x, loss=total, probes=1)
    assert found.dz == pytest.approx(shortcut_ratio(net, x).gamma)
    assert found.gamma == pytest.approx(found.dz)
    assert found.dz[-1] < 0.8


def test_directions_removed_by_normalisation_do_not_count() -> None:
    net = StepsNet([Stack([Scale(2.0), Scale(4.0)])], [6])
    assert gradient_flow(net, torch.randn(3, 5, 6), loss=total).dz == pytest.approx([1.0, 1.0])


def test_the_gain_is_that_of_the_jacobian() -> None:
    net = StepsNet([Stack([Linear(6)])], [6]).double()
    x = torch.randn(1, 1, 6, dtype=torch.float64)
    found = gradient_flow(
        net, x.repeat(1, 2000, 1), loss=total, probes=2
    )  # the same position often: as many directions

    def normalised(z: Tensor) -> Tensor:
        return (z - z.mean()) / z.std(correction=0)

    z_0, sigma_0 = x.flatten(), x.std(correction=0)
    jacobian = torch.autograd.functional.jacobian(
        lambda z_hat: normalised(net(x.mean() + sigma_0 * z_hat)), normalised(z_0)
    )
    gain = _tangent_gain(jacobian, normalised(z_0))
    assert found.gain == pytest.approx([gain], rel=0.03)


def _tangent_gain(jacobian: Tensor, z_hat: Tensor) -> float:
    """Root mean square of ‖Jv‖/‖v‖ over directions of mean 0, perpendicular to ẑ_0: the norm of J over their number."""
    removed = torch.stack((torch.ones_like(z_hat), z_hat)).T
    basis = torch.linalg.qr(torch.cat((removed, torch.randn(6, 4, dtype=torch.float64)), dim=1))[0][:, 2:]
    return float((jacobian @ basis).norm() / 4**0.5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own forward mode uses it
def test_reverse_mode_agrees_with_forward_mode() -> None:
    net = StepsNet([Stack([Linear(width), Tanh(width)]) for width in (6, 8)], [6, 8]).double().requires_grad_(False)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    v = _projected(torch.randn(x.shape, generator=probe_generator(5), dtype=torch.float64), x)
    both = torch.func.jvp(lambda z_0: net.walk(z_0)[1], (x,), (v * x.std(-1, correction=0, keepdim=True),))
    expected = []
    for z, dz in zip(both[0], both[1], strict=True):
        moved = _projected(dz, z) / z.std(-1, correction=0, keepdim=True)
        expected.append(float(((v * moved).sum(-1) / (v * _projected(v, z)).sum(-1)).mean()))
    assert gradient_flow(net, x, loss=total, seed=5).dz == pytest.approx(expected)


def _projected(v: Tensor, z: Tensor) -> Tensor:
    z_hat = (z - z.mean(-1, keepdim=True)) / z.std(-1, correction=0, keepdim=True)
    v = v - v.mean(-1, keepdim=True)
    return v - z_hat * (v * z_hat).mean(-1, keepdim=True)


def test_stopped_gradients_count() -> None:
    """What enters by a matched join has a factor without gradient; with gradient the flow is another one."""
    x = torch.randn(3, 5, 8)
    flows = [
        gradient_flow(StepsNet([Stack([Scale(3.0)]), Stack([Scale(1.0)])], [6, 8], join=join), x, loss=total)
        for join in JOINS
    ]
    assert flows[0].gamma == pytest.approx(flows[1].gamma)
    assert flows[0].dz[1] != pytest.approx(flows[1].dz[1], rel=1e-3)


JOINS = ("matched", "matched_grad")


class Tanh(nn.Module):
    """A block z + tanh(z A)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.a(x))


def test_norms_are_those_of_a_backward_pass() -> None:
    model = create_model("test_steps_deit").eval()
    x = torch.randn(2, 3, 32, 32)
    found = gradient_flow(model, x, probes=1, loss=lambda output: output.square().mean())
    assert all(parameter.grad is None for parameter in model.parameters())
    model(x).square().mean().backward()

    def norm(module: nn.Module) -> float:
        return math.sqrt(
            sum(float(parameter.grad.square().sum()) for parameter in module.parameters() if parameter.grad is not None)
        )

    assert found.block_norms == pytest.approx([norm(block) for block in model.blocks_in_order()], rel=1e-4)
    assert found.step_norms == pytest.approx([norm(step) for step in model.nets()[0].steps], rel=1e-4)
    assert found.steps == ["step 1", "step 2", "step 3"]


def test_channels_that_join_later_count_in_the_gradient_of_the_state() -> None:
    net = StepsNet([Stack([Scale(3.0)]), Stack([Scale(2.0)])], [4, 6])
    found = gradient_flow(net, torch.randn(1, 1, 6), loss=total)
    assert found.activation_norms == pytest.approx([math.sqrt(6 * 2.0**2), math.sqrt(6)])


def test_finished_channels_count_in_the_gradient_of_the_state() -> None:
    net = ReverseStepsNet([Stack([Scale(2.0)]), Stack([Scale(5.0)])], [6, 4])
    found = gradient_flow(net, torch.randn(1, 1, 6), loss=total)
    assert found.activation_norms == pytest.approx([math.sqrt(4 * 5.0**2 + 2), math.sqrt(6)])


def test_the_shortcut_of_a_reverse_network_follows_its_channels() -> None:
    net = ReverseStepsNet([Stack([Scale(1.0)]), Stack([Scale(1.0)])], [6, 4])
    assert gradient_flow(net, torch.randn(2, 3, 6), loss=total).dz == pytest.approx([1.0, 1.0])


def test_a_custom_module_list_can_be_measured() -> None:
    model = Foreign()
    found = gradient_flow(model, torch.randn(2, 3, 8), blocks=model.layers, loss=total)
    assert found.dz == pytest.approx([1.0] * 4)
    assert found.stage == [0, 0, 1, 1]
    assert found.block_norms[0] > 0


def test_the_same_seed_is_the_same_result() -> None:
    model = create_model("test_steps_transformer")
    ids = torch.randint(0, 256, (2, 16))
    assert gradient_flow(model, ids, probes=1, seed=3) == gradient_flow(model, ids, probes=1, seed=3)


def test_the_default_loss_is_that_of_random_classes() -> None:
    assert float(random_class_loss(torch.zeros(3, 5, 10))) == pytest.approx(math.log(10))
    assert float(random_class_loss(torch.tensor(1.5))) == 1.5


def test_a_loss_that_is_not_a_scalar_is_refused() -> None:
    with pytest.raises(UsageError, match="scalar"):
        gradient_flow(constant_branches(), torch.randn(1, 6), loss=lambda output: output)


def test_the_model_is_left_unchanged() -> None:
    model = create_model("test_steps_resnet").train()
    before: dict[str, Any] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    frozen = next(model.parameters()).requires_grad_(False)
    gradient_flow(model, torch.randn(2, 3, 32, 32), probes=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training
    assert not frozen.requires_grad
    assert no_hooks(model)


def test_transformer_layers_of_pytorch_can_be_measured() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = gradient_flow(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 16), probes=1)
    assert len(found.dz) == 2


def test_the_result_becomes_json() -> None:
    found = gradient_flow(constant_branches(), torch.randn(2, 3, 6), probes=1)
    assert len(found.to_json()["dz"]) == 4
