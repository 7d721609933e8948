"""deepen: where new blocks go, what is trained, and what is refused. Every class is in test_support.py."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepsnet import UsageError, deepen, freeze_old, surgery_report, undeepen
from stepsnet.surgery.identity import make_identity
from tests.surgery import tiny
from tests.surgery.test_stepify import EXAMPLE, Block, NamedOwn, Own
from tests.train.synthetic import in_processes


class ScaledBlock(nn.Module):
    """A pre-norm block with LayerScale of its own, and a part in one piece."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.gamma * self.attention(y, y, y)[0]


def widths(model: Any) -> list[int]:
    return [layer.self_attn.q_proj.in_features for layer in model.model.layers]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("front", [32] * 4 + [64] * 4),
        ("every:1", [64, 32] * 4),
        ("every:2", [64, 64, 32, 32] * 2),
        ("every:3", [64] * 3 + [32] * 4 + [64]),
        ([4], [64] * 4 + [32] * 4),
        ([0, 3], [32, 32, 64, 64, 64, 32, 32, 64]),
    ],
)
def test_new_blocks_stand_where_at_says(at: Any, expected: list[int]) -> None:
    model: Any = tiny.stir(tiny.llama()).eval()
    x = tiny.tokens()
    before = model(x).logits
    deepen(model, "32x4", at=at, verify=x)
    assert widths(model) == expected
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == list(range(8))
    assert torch.equal(model(x).logits, before)
    moved = surgery_report(model).moved
    new = [position for position, width in enumerate(expected) if width == 64]
    assert moved == {f"model.layers.{old}": f"model.layers.{position}" for old, position in enumerate(new)}


def test_training_moves_new_blocks_only_when_the_old_ones_are_frozen() -> None:
    model = deepen(tiny.llama(), "32x2", train="new").train()
    added = surgery_report(model).added
    assert added == ("model.layers.0", "model.layers.1")
    assert {
        name.startswith(tuple(f"{block}." for block in added))
        for name, p in model.named_parameters()
        if p.requires_grad
    } == {True}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), 1e-2)
    x = tiny.tokens(12, 4)
    losses = []
    for _ in range(8):
        loss = model(x, labels=x).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith(tuple(f"{block}." for block in added)) for name in changed)


def test_only_new_blocks_of_a_vit_are_left_to_train() -> None:
    model = freeze_old(deepen(tiny.vit(), "32x2", at="every:2"))
    assert {name.rsplit(".", 1)[0] for name, p in model.named_parameters() if p.requires_grad} == {
        f"{block}.{name}"
        for block in ("blocks.2", "blocks.5")
        for name, part in model.get_submodule(block).named_modules()
        if part._parameters
    }


def test_frozen_blocks_train_under_ddp() -> None:
    def with_gradient() -> tuple[set[str], set[str]]:
        model = deepen(tiny.llama(), "32x2", train="new").train()
        x = tiny.tokens()
        nn.parallel.DistributedDataParallel(model)(x, labels=x).loss.backward()
        found = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        return found, set(surgery_report(model).with_gradient)

    ((found, reported),) = in_processes(1, with_gradient)
    assert found == reported


def test_only_the_ends_of_branches_are_zeroed_and_all_of_them_learn_at_once() -> None:
    model = deepen(tiny.llama(), "32x1")
    report = surgery_report(model)
    ends = ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight")
    assert report.with_gradient == ends
    assert {name for name, p in model.model.layers[0].named_parameters() if not p.any()} == {
        name.removeprefix("model.layers.0.") for name in ends
    }
    assert (report.blocks_before, report.blocks_after, report.difference) == (4, 5, 0.0)
    assert report.params_after > report.params_before
    assert "max |Δ| = 0" in str(report)
    assert "join" not in str(report)


def test_layer_scale_is_zeroed_where_there_is_one() -> None:
    block = ScaledBlock(8)
    x = torch.randn(2, 5, 8)
    assert make_identity(block, x) == ["gamma"]
    assert torch.equal(block(x), x)


def test_a_layer_in_one_piece_keeps_all_but_its_last_matrix() -> None:
    block = ScaledBlock(8)
    block.gamma.requires_grad_(False)
    del block._parameters["gamma"]
    block.register_buffer("gamma", torch.full((8,), 0.1))
    assert make_identity(block, torch.randn(2, 5, 8)) == ["attention.out_proj.bias", "attention.out_proj.weight"]
    assert block.attention.in_proj_weight.any()


def test_new_layers_take_the_kind_of_the_layer_they_stand_before() -> None:
    import transformers

    from stepsnet.surgery.support import TRANSFORMERS

    model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**TRANSFORMERS["Gemma3ForCausalLM"][1]))
    kinds = list(model.config.layer_types or ())
    assert kinds[5] == "full_attention"
    deepen(model, "32x2", at=[5, 6])
    assert model.config.layer_types == [*kinds[:5], kinds[5], kinds[5], kinds[6], kinds[6]]
    assert undeepen(model).config.layer_types == kinds


def test_a_deepened_vit_keeps_its_features_by_block() -> None:
    model = deepen(tiny.vit(drop_path_rate=0.2), "32x2")
    assert [info["module"] for info in model.feature_info] == [f"blocks.{i}" for i in range(6)]
    undeepen(model)
    assert [info["module"] for info in model.feature_info] == [f"blocks.{i}" for i in range(4)]
    assert [getattr(block.drop_path1, "drop_prob", 0) for block in model.blocks] == pytest.approx(
        [0, 0.2 / 3, 0.4 / 3, 0.2]
    )


class Linear(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(self.norm(x))


def test_blocks_have_their_own_names_again_after_undeepen() -> None:
    model = NamedOwn()
    keys = list(model.state_dict())
    deepen(model, "16x1", make_block=lambda width, index: Linear(width), example=EXAMPLE)
    assert surgery_report(model).moved["body.layer_0"] == "body.1"
    assert list(undeepen(model).state_dict()) == keys


class Masked(Own):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).index_fill(-1, torch.tensor([0]), -torch.inf)


class Signs(Own):
    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y, y > 0


@pytest.mark.parametrize("kind", [Masked, Signs])
def test_outputs_that_cannot_be_subtracted_are_compared(kind: type[Own]) -> None:
    model = deepen(kind(), "16x1", make_block=lambda width, index: Linear(width), example=EXAMPLE)
    assert surgery_report(model).difference == 0


def test_gradients_are_reported_where_they_are_switched_off() -> None:
    with torch.no_grad():
        assert surgery_report(deepen(tiny.vit(), "32x1")).with_gradient


def test_a_vit_in_bfloat16_is_deepened() -> None:
    model = deepen(tiny.vit().bfloat16(), "32x1")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_a_model_of_our_own_is_deepened_by_a_function_that_makes_blocks() -> None:
    model = Own().eval()
    x = torch.randn(3, 5)
    before = model(x)
    deepen(model, "16x3", make_block=lambda width, index: Linear(width), example=x)
    assert len(model.body) == 7
    assert torch.equal(model(x), before)
    assert len(undeepen(model).body) == 4


@pytest.mark.parametrize(
    ("new", "how", "message"),
    [
        ("32x2", {"at": "back"}, "at='back' is not known"),
        ("32x2", {"at": [0, 0]}, "names a position twice"),
        ("32x2", {"at": [0, 1, 2]}, "3 positions for 2 new blocks"),
        ("", {}, "'' adds no block"),
        ("32x1000000000", {}, "the most are 1,048,576 channels and 100,000 blocks"),
        ("32x2", {"at": 2}, "at=2 is not known"),
        ("32x2", {"at": "every:9"}, "'every:N' with N from 1 to 4"),
        ("32x2", {"at": [9]}, "positions are numbers of old blocks, from 0 to 4"),
        ("96x2", {}, "new blocks of width 96 do not fit into a state of 64 channels"),
        ("40x2", {}, "multiples of 16"),
        ("32x2; 32x2", {}, "is for 2 stages, but the model has 1"),
        ("many", {}, "is not WIDTHxBLOCKS"),
        ("32x2", {"train": "some"}, "train='some' is not known"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(new: str, how: dict[str, Any], message: str) -> None:
    model = tiny.llama()
    with pytest.raises(UsageError, match=message):
        deepen(model, new, **how)
    assert len(model.model.layers) == 4


def test_a_plain_model_has_nothing_to_remove_or_freeze() -> None:
    with pytest.raises(UsageError, match="was not deepened"):
        undeepen(tiny.llama())
    with pytest.raises(UsageError, match="there is no report"):
        freeze_old(tiny.llama())


def test_a_block_that_changes_the_state_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["stepsnet.surgery.deepen"], "make_identity", lambda *_: [])
    model = tiny.llama()
    with pytest.raises(UsageError, match=r"the new block 'model\.layers\.0' changes the state by up to"):
        deepen(model, "32x2")
    assert len(model.model.layers) == model.config.num_hidden_layers == 4


def test_new_blocks_alone_are_trained_through_peft() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed; it is needed by this test only")
    model = freeze_old(deepen(tiny.llama(), "32x2", at="every:2"))
    new = list(surgery_report(model).added)
    added = tuple(f"{block}." for block in new)
    old = {name: p.detach().clone() for name, p in model.named_parameters() if not name.startswith(added)}
    assert not any(model.get_parameter(name).requires_grad for name in old)
    config = peft.LoraConfig(r=2, target_modules=["o_proj"], layers_to_transform=[0], modules_to_save=new)
    wrapped = peft.get_peft_model(model, config)
    parameters = {name: p for name, p in wrapped.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in parameters.items()}
    x = tiny.tokens()
    wrapped(x, labels=x).loss.backward()
    torch.optim.SGD(parameters.values(), 0.5).step()
    changed = {name for name, p in parameters.items() if not torch.equal(p, before[name])}
    assert all(any(f"{block}." in name for name in changed) for block in new)
    assert any(".lora_B." in name for name in changed)
    now = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): p for name, p in wrapped.named_parameters()
    }
    assert [name for name, value in old.items() if not torch.equal(now[name], value)] == []
