"""Residual designs: every family takes every design."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stepsnet.blocks.designs import RESIDUALS, HyperConnection, InjectedStack, ResidualDesign, hyper_connections
from stepsnet.blocks.residual import DeepNorm, LayerNormScaling, LayerScale, Place, Residual, ReZero
from stepsnet.errors import UsageError
from stepsnet.models import create_model, load_model, save_model
from tests.models.tiny import STEPS, TINY, check_same, example, shake

every_model = pytest.mark.parametrize("name", TINY)
PARTS: dict[str, type[nn.Module]] = {
    "layerscale": LayerScale, "rezero": ReZero, "deepnorm": DeepNorm, "hyper": HyperConnection,
    "layernorm_scaling": LayerNormScaling, "x0_injection": Residual,
}  # fmt: skip
START_PLAIN = {"hyper": "mix", "x0_injection": "inject"}
"""Designs that start as the plain network, and the parameters that change it."""
every_design = pytest.mark.parametrize("design", PARTS)


@every_model
@every_design
def test_every_design_replaces_every_branch_and_learns(name: str, design: str) -> None:
    model = shake(create_model(name, residual=design))
    branches = [module for module in model.modules() if isinstance(module, Residual)]
    assert {type(branch) for branch in branches} == {PARTS[design]}
    assert len(branches) >= len(model.blocks_in_order())
    logits = model(example(model))
    assert logits.isfinite().all()
    logits.square().mean().backward()
    assert [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ] == []


@every_model
@every_design
def test_a_design_changes_what_is_computed(name: str, design: str) -> None:
    plain, other = shake(create_model(name)).eval(), create_model(name, residual=design).eval()
    other.load_state_dict(plain.state_dict(), strict=False)
    x = example(plain)
    if design in START_PLAIN:
        torch.testing.assert_close(other(x), plain(x))
        with torch.no_grad():
            named = next(value for key, value in other.named_parameters() if START_PLAIN[design] in key.split("."))
            named.view(-1)[1 if design == "hyper" else 0] += 0.5
    assert not torch.allclose(other(x), plain(x), atol=1e-6)


@every_model
def test_rezero_starts_with_every_block_as_its_shortcut(name: str) -> None:
    model = create_model(name, residual="rezero").eval()
    for net in model.nets():
        net.register_forward_hook(lambda _net, inputs, output: torch.testing.assert_close(output, inputs[0]))
    model(example(model))


@pytest.mark.parametrize("name", STEPS)
def test_new_hyper_connections_equal_the_plain_network_in_values_and_gradients(name: str) -> None:
    plain, hyper = shake(create_model(name)), create_model(name, residual="hyper")
    unmatched = hyper.load_state_dict(plain.state_dict(), strict=False)
    assert unmatched.unexpected_keys == []
    assert {key.rsplit(".", 1)[1] for key in unmatched.missing_keys} == {"read", "mix", "write"}
    x = example(plain)
    x = x.double() if x.is_floating_point() else x
    for model in (plain.double(), hyper.double()):  # batch norms over few numbers make single precision part ways
        model(x).square().mean().backward()
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(hyper.get_parameter(key).grad, parameter.grad, msg=key)


def test_hyper_connections_follow_their_equations() -> None:
    part = HyperConnection(None, nn.Tanh(), Place(4), streams=3)
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, 2, 4)
    h = sum(part.read[s] * x[s] for s in range(3))
    r = torch.as_tensor(h).tanh()
    expected = [x[s] + sum(part.mix[s, t] * x[t] for t in range(3)) + part.write[s] * r for s in range(3)]
    torch.testing.assert_close(part(x), torch.stack(expected))


def test_blocks_read_the_streams_in_turn() -> None:
    model = create_model("test_deit", residual=hyper_connections(3))
    turns = [part.read.argmax().item() for part in model.modules() if isinstance(part, HyperConnection)]
    assert turns == [0, 0, 1, 1, 2, 2, 0, 0]


def test_layer_scale_is_one_number_per_channel_at_any_channel_dimension() -> None:
    for channel_dim, shape in ((1, (2, 4, 3, 3)), (-1, (2, 5, 4))):
        part = LayerScale(None, nn.Identity(), Place(4, channel_dim))
        with torch.no_grad():
            part.scale.copy_(torch.arange(4.0))
        gains = part(torch.ones(shape)).movedim(channel_dim, -1) - 1
        assert torch.equal(gains, torch.arange(4.0).expand_as(gains))


def test_layer_scale_starts_smaller_in_deeper_networks() -> None:
    starts = [LayerScale(None, nn.Identity(), Place(2, depth=depth)).scale[0].item() for depth in (18, 24, 25)]
    assert starts == pytest.approx([0.1, 1e-5, 1e-6])


def test_deep_norm_puts_the_norm_behind_the_sum() -> None:
    norm = nn.LayerNorm(4)
    x = torch.randn(3, 4)
    torch.testing.assert_close(DeepNorm(norm, nn.Tanh(), Place(4, depth=8))(x), norm(2.0 * x + 8**-0.5 * x.tanh()))


def test_deep_norm_without_a_norm_divides_by_alpha() -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(DeepNorm(None, nn.Tanh(), Place(4, depth=8))(x), (2.0 * x + 8**-0.5 * x.tanh()) / 2.0)


def test_layer_norm_scaling_divides_the_norm_by_the_root_of_the_block_number() -> None:
    norm = nn.LayerNorm(4)
    x = torch.randn(3, 4)
    part = LayerNormScaling(norm, nn.Tanh(), Place(4, index=8))
    torch.testing.assert_close(part(x), x + (norm(x) / 3).tanh())
    torch.testing.assert_close(LayerNormScaling(None, nn.Tanh(), Place(4, index=8))(x), x + x.tanh() / 3)


@pytest.mark.parametrize("recompute", [False, True])
def test_x0_injection_adds_the_input_of_the_stack_before_every_block(recompute: bool) -> None:
    stack = InjectedStack([nn.Tanh(), nn.Sigmoid(), nn.Tanh()])
    stack.grad_checkpointing = recompute
    for parameter in stack.parameters():
        nn.init.normal_(parameter)
    x = x_0 = torch.randn(2, 4, requires_grad=True)
    states = []
    for number, block in enumerate(stack.blocks):
        x = block(stack.keep[number] * x + stack.inject[number] * x_0)
        states.append(x)
    torch.testing.assert_close(stack(x_0), x)
    torch.testing.assert_close(list(stack.walk(x_0)), states)


def test_custom_residual_designs() -> None:
    class Halved(Residual):
        def forward(self, x: Tensor, *context: object) -> Tensor:
            return x + 0.5 * self.branch(self.norm(x), *context)

    for given in (Halved, ResidualDesign(Halved)):
        model = create_model("test_steps_swin", residual=given)
        assert any(isinstance(module, Halved) for module in model.modules())


@every_design
def test_designs_survive_saving_and_loading(design: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = shake(create_model("test_steps_deit", residual=design)).eval()
    save_model(model, path)
    x = example(model)
    check_same(load_model(path).eval(), model, x)


def test_an_unknown_design_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"no residual design 'layer_scale'; nearest: layerscale.*; known are " + ", ".join(RESIDUALS)
    ):
        create_model("test_deit", residual="layer_scale")


def test_x0_injection_is_initialised_again() -> None:
    model = create_model("test_deit", residual="x0_injection", device="meta").to_empty(device="cpu")
    model.reset_parameters()
    keeps = [value for name, value in model.named_parameters() if ".keep." in name]
    assert keeps
    assert all(value == 1 for value in keeps)


def test_a_backbone_with_x0_injection_ends_at_its_last_map() -> None:
    backbone = create_model("test_deit", residual="x0_injection", features_only=True, out_indices=(1,))
    (found,) = backbone(torch.zeros(1, 3, 32, 32))
    assert torch.isfinite(found).all()
