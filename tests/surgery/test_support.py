"""Every class that is said to be supported: stepified and deepened on a tiny model with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet import UsageError, deepen, stepify, surgery_report, undeepen
from stepsnet.surgery import support
from stepsnet.surgery.stepify import find_host
from stepsnet.surgery.uses import USES, make_subject
from tests.surgery import tiny

POST_NORM = {"BertForMaskedLM", "RobertaForMaskedLM"}
NO_PLAIN_SHORTCUT = {"repvit_m1"}
HEADS_OUTSIDE = {"BloomForCausalLM", "T5EncoderModel"}
MODELS = [("timm", name) for name in support.TIMM] + [("transformers", name) for name in support.TRANSFORMERS]
CAN_STEP = [(library, name) for library, name in MODELS if name not in HEADS_OUTSIDE]
CAUSAL = ("Llama", "Qwen2", "Qwen3", "Mistral", "Mixtral", "Gemma2", "Gemma3")
USED = [
    *(("timm", name) for name in support.TIMM),
    *(("transformers", f"{name}ForCausalLM") for name in CAUSAL),
]
CAN_DEEPEN = [(library, name) for library, name in CAN_STEP if name not in POST_NORM | NO_PLAIN_SHORTCUT]


def make(library: str, name: str) -> tuple[Any, dict[str, Any]]:
    """The model and the arguments that stepify and deepen need for it."""
    if library == "timm":
        return support.make_timm(name).eval(), {"options": support.TIMM[name]}
    return support.make_transformers(name).eval(), {}


def run(host: Any) -> Tensor:
    out = host.runs(
        *(torch.randn_like(x) if x.is_floating_point() else torch.randint(3, 40, x.shape) for x in host.example)
    )
    return out if isinstance(out, Tensor) else out[0]


@pytest.mark.parametrize(("library", "name"), CAN_STEP)
def test_stepified_models_run_and_every_block_learns(library: str, name: str) -> None:
    model, how = make(library, name)
    host = find_host(model, **how)
    plan = support.two_steps(host)
    assert stepify(model, plan, **how) is model
    tiny.stir(model)
    report = surgery_report(model)
    assert report.plan_after == plan
    assert report.params_after == sum(p.numel() for p in model.parameters())
    states: list[tuple[Tensor, Tensor]] = []
    last, path = host.stages[-1], host.stages[-1].path
    narrow = support.narrow_width(host, len(host.stages) - 1)
    first: nn.Module = list(model.get_submodule(path))[last.start]
    first.register_forward_hook(
        lambda _block, args, out: states.append((args[0], out[0] if isinstance(out, tuple) else out))
    )
    found = run(host)
    assert found.isfinite().all()
    dim = last.channel_dim
    rest = last.width - narrow
    before, after = states[0]
    assert torch.equal(before.narrow(dim, narrow, rest), after.narrow(dim, narrow, rest))
    assert not torch.equal(before.narrow(dim, 0, narrow), after.narrow(dim, 0, narrow))
    found.square().sum().backward()
    blocks = [
        block for number in range(len(host.stages)) for block in list(model.get_submodule(host.stages[number].path))
    ]
    silent = [
        n
        for block in blocks
        for n, p in block.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    assert [name for name in silent if not name.endswith(EXPECTED_SILENT)] == []


EXPECTED_SILENT = (
    "k_proj.bias",
    "key.bias",
    "rel_pos.mlp.fc2.bias",  # a softmax does not see what is added to all its inputs
    "experts.gate_up_proj",
    "experts.down_proj",
    "gate.weight",  # an expert that no token was sent to
)

@pytest.mark.parametrize(("library", "name"), USED)
def test_stepified_models_are_used_as_before(library: str, name: str) -> None:
    model, how = make(library, name)
    host = find_host(model, **how)
    stepify(model, support.two_steps(host), **how)
    tiny.stir(model)
    for use in ("hidden states", "save and load", "generate", "checkpointing"):  # the last one changes the mode
        USES[use](make_subject(model, host))


@pytest.mark.parametrize(("library", "name"), CAN_DEEPEN)
def test_deepened_models_return_the_same_and_can_be_made_as_they_were(library: str, name: str) -> None:
    model, how = make(library, name)
    tiny.stir(model)
    host = find_host(model, **how)
    longest = max(range(len(host.stages)), key=lambda stage: host.stages[stage].depth)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(1)
    with torch.no_grad():
        expected = run(host)
    deepen(model, f"{support.narrow_width(host, longest)}x2", at="every:2", **how)
    report = surgery_report(model)
    assert report.difference == 0
    assert len(report.added) == 2
    assert all(any(name.startswith(f"{block}.") for name in report.with_gradient) for block in report.added)
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(run(host), expected)
    undeepen(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("name", sorted(HEADS_OUTSIDE))
def test_models_whose_positions_depend_on_the_heads_are_refused(name: str) -> None:
    model, _ = make("transformers", name)
    with pytest.raises(UsageError, match="something outside its blocks depends on their width or heads"):
        stepify(model, "32x4, 64x2")


@pytest.mark.parametrize(
    ("library", "name"),
    [("transformers", "BertForMaskedLM"), ("transformers", "RobertaForMaskedLM"), ("timm", "repvit_m1")],
)
def test_blocks_that_cannot_be_the_identity_are_refused(library: str, name: str) -> None:
    model, how = make(library, name)
    why = r"it normalises the sum .*post-norm\), or changes the shortcut in another way"
    with pytest.raises(UsageError, match=f"cannot start as the identity: {why}"):
        deepen(model, "32x2", **how)
