"""The doctor finds no problem in models that train well, and the right one in others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepsnet
from stepsnet.analysis import Diagnosis, diagnose
from stepsnet.analysis.doctor import rules
from stepsnet.analysis.doctor.measure import Traits, traits_of
from stepsnet.analysis.doctor.rules import LIMITS, shortcut_finding
from stepsnet.errors import UsageError
from stepsnet.macro import Join, MatchedJoin, PlainJoin, Stack, StepsNet

FAMILIES = ("deit", "resnet", "swin", "transformer")
TRAIN_WELL = [f"test_{steps}{family}" for family in FAMILIES for steps in ("", "steps_")]

MATCHED = {"plan": "3", "join": "matched_grad"}


class Block(nn.Module):
    """keep · x + scale · R(norm(x))"""

    def __init__(self, width: int, scale: float = 0.1, keep: float = 1.0) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.scale, self.keep = scale, keep

    def forward(self, x: Tensor) -> Tensor:
        return self.keep * x + self.scale * self.linear(self.norm(x)).tanh()


def network(blocks: Iterable[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), *blocks, nn.LayerNorm(16), nn.Linear(16, 4))


def x() -> Tensor:
    return torch.randn(4, 5, 6)


def named(diagnosis: Diagnosis) -> dict[str, str]:
    return {finding.name: finding.severity for finding in diagnosis.findings}


@pytest.mark.parametrize("name", TRAIN_WELL)
def test_a_registered_model_has_no_findings_as_initialised(name: str) -> None:
    model = stepsnet.create_model(name)
    inputs = (
        torch.randn(2, *model.input_size) if len(model.input_size) == 3 else torch.randint(10, (2, *model.input_size))
    )
    found = diagnose(model, inputs, trained=False)
    assert found.healthy
    assert named(found) == {}
    assert found.verdict == "No problems found."


def test_a_custom_network_of_moderate_depth_has_no_findings() -> None:
    assert named(diagnose(network(Block(16) for _ in range(12)), x())) == {}


def test_a_deep_network_with_large_branches_has_a_degraded_shortcut() -> None:
    found = diagnose(network(Block(16, scale=10.0) for _ in range(96)), x(), weights="seed 0, step 0")
    assert named(found)["shortcut-degrades"] == "severe"
    finding = next(finding for finding in found.findings if finding.name == "shortcut-degrades")
    gamma = sorted(block.gamma for block in found.measured.blocks)
    assert finding.value == pytest.approx((gamma[47] + gamma[48]) / 2)
    assert finding.value < LIMITS.gamma_severe
    assert "seed 0, step 0" in finding.what  # γ comes with initialisation and step
    assert "StepsNet(" in finding.command
    assert not found.healthy


@pytest.mark.parametrize("scale", [4.0, 100.0])
def test_a_low_gamma_in_a_shallow_network_is_a_note(scale: float) -> None:
    assert named(diagnose(network(Block(16, scale=scale) for _ in range(8)), x()))["shortcut-degrades"] == "note"


def test_before_training_a_degraded_shortcut_is_a_warning() -> None:
    found = diagnose(network(Block(16, scale=10.0) for _ in range(96)), x(), trained=False)
    assert named(found)["shortcut-degrades"] == "warning"


def test_vanishing_gradients_are_found() -> None:
    found = diagnose(network(Block(16, keep=0.3, scale=1e-3) for _ in range(12)), x())
    assert named(found)["gradients-vanish"] == "severe"
    norms = [block.state_gradient for block in found.measured.blocks]
    assert norms[0] / norms[-1] == pytest.approx(next(f.value for f in found.findings if f.name == "gradients-vanish"))


def test_exploding_gradients_are_found() -> None:
    assert (
        named(diagnose(network(Block(16, keep=3.0, scale=1e-3) for _ in range(12)), x()))["gradients-explode"]
        == "severe"
    )


@pytest.mark.parametrize(("clip", "change"), [(0.0, {"clip": "1.0"}), (1.0, {"lr": ""})])
def test_clipping_is_advised_only_to_runs_without_it(
    clip: float, change: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_layerscale", lambda traits: {})  # as if the branches had scales already
    found = diagnose(network(Block(16, keep=3.0, scale=1e-3) for _ in range(12)), x(), clip=clip)
    finding = next(each for each in found.findings if each.name == "gradients-explode")
    assert finding.change == change
    assert ("clip gradients" in finding.advice) is (clip == 0)


@pytest.mark.parametrize(("trained", "severity"), [(False, "note"), (None, "warning"), (True, "warning")])
def test_a_head_of_zeros_is_a_note_before_training_and_later_a_warning(trained: bool | None, severity: str) -> None:
    model = network(Block(16) for _ in range(4))
    nn.init.zeros_(model[-1].weight)  # type: ignore[index]
    found = diagnose(model, x(), trained=trained)
    assert named(found) == {"no-gradient": severity}
    assert ("Before training" in found.findings[0].advice) is (trained is False)


def stepped(join: Join, scale: float) -> nn.Module:
    """The first step makes y large; the new channels stay small."""
    steps = [Stack(Block(8, scale=scale) for _ in range(6)), Stack(Block(16) for _ in range(6))]
    return nn.Sequential(nn.Linear(6, 16), StepsNet(steps, [8, 16], join=join), nn.Linear(16, 4))


def test_new_channels_that_are_too_small_are_found() -> None:
    found = diagnose(stepped("plain", 20.0), x())
    assert named(found)["new-channels-too-small"] == "severe"
    assert next(f for f in found.findings if f.name == "new-channels-too-small").change == {"join": "matched_grad"}


def test_matched_joins_make_the_sizes_equal() -> None:
    found = diagnose(stepped("matched_grad", 20.0), x())
    assert found.measured.joins[0].ratio == pytest.approx(1, rel=0.05)
    assert "new-channels-too-small" not in named(found)


def test_joins_of_similar_sizes_have_no_findings() -> None:
    assert named(diagnose(stepped("plain", 0.1), x())) == {}


class SmallJoin(PlainJoin):
    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.cat((y, 1e-3 * self.scaled(y, x)), -1)


class SmallMatchedJoin(SmallJoin, MatchedJoin):
    """A matched join that is scaled down afterwards."""


@pytest.mark.parametrize("join", [SmallJoin(), SmallMatchedJoin()])
def test_matched_joins_are_advised_only_to_models_without_them(join: PlainJoin) -> None:
    found = diagnose(stepped(join, 0.1), x()).findings
    finding = next(each for each in found if each.name == "new-channels-too-small")
    matched = isinstance(join, MatchedJoin)
    assert finding.change == ({} if matched else {"join": "matched_grad"})
    assert ("Use matched joins" in finding.advice) is not matched


@pytest.mark.parametrize("residual", ["plain", "layerscale", "rezero"])
def test_layerscale_is_advised_only_to_models_without_branch_scales(residual: str) -> None:
    model = stepsnet.create_model("test_steps_deit", residual=residual)
    for name, parameter in model.named_parameters():
        nn.init.constant_(parameter, 1e3) if name.endswith("scale") else parameter.data.mul_(
            40 if "blocks" in name else 1
        )
    found = diagnose(model, torch.randn(2, *model.input_size))
    large = [each for each in found.findings if each.name in ("state-replaced", "shortcut-degrades")]
    assert large
    assert all((each.change == {"residual": "layerscale"}) is (residual == "plain") for each in large)
    assert all(("LayerScale" in each.advice) is (residual == "plain") for each in large)


@pytest.mark.parametrize("owner", ["block", "norm"])
def test_branch_scales_are_distinguished_from_scales_of_norms(owner: str) -> None:
    model = network(Block(16) for _ in range(3))
    (model[1] if owner == "block" else model[1].norm).register_parameter("gamma", nn.Parameter(torch.ones(16)))  # type: ignore[index]
    assert traits_of(model).scales is (owner == "block")


@pytest.mark.parametrize(
    ("residual", "blocks", "words"),
    [
        ("plain", 4, "start with small branches"),
        ("layerscale", 4, "start the branch scales lower"),  # at 0.1
        ("layerscale", 25, "or lower the learning rate of the branch scales"),  # at 1e-6
        ("rezero", 4, "or lower the learning rate of the branch scales"),
    ],
)
def test_scales_that_start_near_zero_are_not_advised_to_start_lower(residual: str, blocks: int, words: str) -> None:
    design = traits_of(stepsnet.create_model("test_deit", plan=f"32x{blocks}", residual=residual))
    finding = shortcut_finding([0.01] * 48, design, "")
    assert finding is not None
    assert words in finding.advice


def test_the_start_of_scales_without_a_known_attribute_is_unknown() -> None:
    model = network(Block(16) for _ in range(3))
    model[1].register_parameter("gamma", nn.Parameter(torch.zeros(16)))  # type: ignore[index]
    assert not traits_of(model).small


@pytest.mark.parametrize(
    ("name", "options", "cut"),
    [
        ("test_deit", {}, MATCHED),
        ("test_deit", {"macro": "reverse"}, MATCHED | {"macro": "steps"}),  # it has no joins to match
        ("test_deit", {"plan": "24x9", "embed_dim": 24}, MATCHED | {"embed_dim": "24", "depth": "9"}),
        ("test_deit", {"plan": "6x9", "embed_dim": 6}, {}),  # 3 and 4.2, rounded to even widths, are both 4
        ("test_transformer", {}, {}),  # 16 and 22.6, rounded to multiples of 16, are both 16
        ("test_steps_deit", {}, {}),
        ("test_swin", {}, MATCHED),
        ("test_swin", {"plan": "8x1; 16x1; 32x5; 64x2"}, MATCHED | {"embed_dim": "8", "depths": "[1, 1, 5, 2]"}),
        ("test_swin", {"plan": "8x1; 16x1; 32x5; 48x2"}, {}),  # no embed_dim has these widths
        ("test_resnet", {"plan": "8x1; 16x1; 32x7; 64x2"}, MATCHED | {"embed_dim": "8", "depths": "[1, 1, 7, 2]"}),
    ],
)
def test_a_model_is_cut_into_steps_at_its_own_sizes_if_they_fit(
    name: str, options: dict[str, Any], cut: dict[str, str]
) -> None:
    model = stepsnet.create_model(name, **options)
    before = torch.get_rng_state()
    assert traits_of(model).cut == cut
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("cut", [MATCHED, {}], ids=["fit", "do not"])
def test_steps_are_advised_where_they_fit(cut: dict[str, str]) -> None:
    finding = shortcut_finding([0.01] * 48, Traits(cut=cut), "")
    assert finding is not None
    assert finding.change == (cut or {"residual": "layerscale"})
    assert ("Cut the stack into steps" in finding.advice) is bool(cut)


def test_modules_of_the_user_are_not_moved() -> None:
    join = nn.Bilinear(8, 8, 16)
    traits_of(stepsnet.create_model("test_deit", join=join))
    assert not join.weight.is_meta


def test_blocks_that_do_nothing_could_be_removed() -> None:
    model = network([*(Block(16) for _ in range(4)), *(Block(16, scale=1e-4) for _ in range(4))])
    found = diagnose(model, x(), trained=True)
    finding = next(f for f in found.findings if f.name == "depth-unused")
    assert finding.severity == "warning"
    assert found.measured.idle == [5, 6, 7, 8]
    assert "Blocks 5–8 of 8" in finding.what
    assert found.measured.without_idle is not None
    assert 0 < found.measured.without_idle < 1e-3
    assert "could be removed" in finding.advice
    assert finding.change == MATCHED


def test_blocks_that_do_little_each_and_much_together_could_not_be_removed() -> None:
    class Shift(Block):
        """Adds the same small thing each time."""

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.009 * x.detach().abs().mean() + 0 * super().forward(x)

    found = diagnose(
        nn.Sequential(nn.Linear(6, 16), *(Shift(16) for _ in range(20)), nn.Linear(16, 4)), x(), trained=True
    )
    finding = next(each for each in found.findings if each.name == "depth-unused")
    assert len(found.measured.idle) == 20
    assert "needs them together" in finding.advice
    assert "hardly used" not in finding.advice
    assert (finding.severity, finding.change) == ("note", {})


def test_small_branches_before_training_are_not_a_finding() -> None:
    assert named(diagnose(network(Block(16, scale=1e-4) for _ in range(8)), x(), trained=False)) == {}


def test_a_block_that_replaces_the_state_is_named() -> None:
    found = diagnose(network([Block(16), Block(16), Block(16, scale=1e3), Block(16)]), x())
    assert named(found)["state-replaced"] == "warning"
    assert "Block 3 of 4" in next(f.what for f in found.findings if f.name == "state-replaced")


def test_the_first_block_may_replace_the_state() -> None:
    found = diagnose(network([Block(16, scale=1e3), *(Block(16) for _ in range(3))]), x())
    assert found.measured.blocks[0].update > LIMITS.update
    assert "state-replaced" not in named(found)


def test_a_block_without_gradient_is_named() -> None:
    found = diagnose(network([Block(16), Block(16), Block(16, scale=0.0), Block(16)]), x(), trained=False)
    assert named(found) == {"blocks-without-gradient": "warning"}
    assert found.findings[0].what.startswith("Block 3 of 4")


def test_a_state_of_one_direction_is_noted() -> None:
    flat = torch.linspace(-1, 1, 20).view(4, 5, 1) * torch.ones(6)
    model = nn.Sequential(nn.Linear(6, 16), *(Block(16, scale=0.0) for _ in range(3)), nn.Linear(16, 4))
    assert named(diagnose(model, flat, trained=False))["width-unused"] == "note"


def test_weights_that_are_not_finite_are_the_only_finding() -> None:
    model = network(Block(16) for _ in range(4))
    nn.init.constant_(model[2].linear.weight, float("nan"))  # type: ignore[index]
    found = diagnose(model, x())
    assert named(found) == {"not-finite": "severe"}
    assert "block 2 of 4" in found.findings[0].what


def test_a_state_near_the_end_of_half_precision_is_found() -> None:
    model = nn.Sequential(nn.Linear(6, 16), *(Block(16) for _ in range(3)))
    assert named(diagnose(model, 1e5 * x()))["near-overflow"] == "warning"


def test_blocks_can_be_named() -> None:
    model = network(Block(16) for _ in range(5))
    found = diagnose(model, x(), blocks=list(model.children())[2:4])
    assert [block.name for block in found.measured.blocks] == ["2", "3"]


def test_the_loss_given_is_the_one_differentiated() -> None:
    model = network(Block(16) for _ in range(3))
    batch = x()
    one = diagnose(model, batch, loss=lambda: model(batch).square().mean())
    two = diagnose(model, batch, loss=lambda: 2 * model(batch).square().mean())
    assert two.measured.blocks[0].weight_gradient == pytest.approx(2 * one.measured.blocks[0].weight_gradient)


def test_a_loss_without_gradient_is_refused() -> None:
    with pytest.raises(UsageError, match="scalar that depends on the model"):
        diagnose(network(Block(16) for _ in range(3)), x(), loss=lambda: torch.zeros(()))


def test_a_loss_that_is_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="not NoneType"):
        diagnose(network(Block(16) for _ in range(3)), x(), loss=lambda: None)  # type: ignore[arg-type, return-value]


def test_a_frozen_network_can_be_examined() -> None:
    model = network(Block(16) for _ in range(3)).requires_grad_(False)
    blocks = diagnose(model, x()).measured.blocks
    assert all(block.state_gradient > 0 and block.weight_gradient == 0 for block in blocks)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_network_of_zeros_has_no_finding_about_gamma() -> None:
    model = network(Block(16) for _ in range(3))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert "shortcut-degrades" not in {finding.name for finding in diagnose(model, x()).findings}


def test_a_backbone_gets_gradients_from_all_its_maps() -> None:
    model = stepsnet.create_model("test_steps_resnet", features_only=True)
    found = diagnose(model, torch.randn(2, 3, 32, 32), trained=False)
    assert named(found) == {}
    assert all(block.state_gradient > 0 for block in found.measured.blocks)


def test_a_step_is_measured_on_its_own_channels() -> None:
    """Channels that join later do not make an update look smaller."""
    found = diagnose(stepped("plain", 1.0), x())
    first = found.measured.blocks[0]
    assert (first.width, first.step, found.measured.blocks[-1].width, found.measured.blocks[-1].step) == (8, 1, 16, 2)
    model = stepped("plain", 1.0)
    batch = x()
    with torch.no_grad():
        y = model[0](batch)[..., :8]  # type: ignore[index]
        change = model[1].steps[0].blocks[0](y) - y  # type: ignore[index]
    again = diagnose(model, batch).measured.blocks[0]
    assert again.update == pytest.approx(float(change.norm() / y.norm()), rel=1e-4)


def test_the_model_is_left_as_it_was() -> None:
    model = network(Block(16) for _ in range(3))
    diagnose(model, x())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_most_severe_finding_is_first_and_the_result_becomes_json() -> None:
    found = diagnose(
        network([*(Block(16, scale=20.0) for _ in range(30)), *(Block(16, scale=1e-4) for _ in range(30))]),
        x(),
        trained=True,
    )
    severities = [finding.severity for finding in found.findings]
    assert severities == sorted(severities, key=("severe", "warning", "note").index)
    assert len(set(severities)) > 1
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["healthy"] is False
    assert len(document["blocks"]) == 60
