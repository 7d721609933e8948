"""stepify on timm's ViT, transformers' Llama and a model of our own: it equals Eq. 5 bit for bit, and all that is
around the blocks works as before."""

from __future__ import annotations

import copy
import io
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.fx
from torch import Tensor, nn

from stepsnet import StepsNet, UsageError, deepen, stepify, surgery_report
from stepsnet.macro import Join, Stack, StepPlan
from stepsnet.surgery import Host, load, save
from stepsnet.surgery.stepify import find_host
from stepsnet.surgery.support import TIMM, make_timm, make_transformers, two_steps
from tests.models.tiny import check_same
from tests.surgery import tiny


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(self.norm(x)).relu()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 32)
        self.body = nn.ModuleList(Block(32) for _ in range(4))
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.body:
            x = block(x)
        return self.head(x)


class NamedOwn(Own):
    """Own, with names for its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.body: Any = nn.Sequential(OrderedDict((f"layer_{i}", block) for i, block in enumerate(self.body)))


class WithUnused(Own):
    """Own, with blocks that are not in use."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.ModuleList(Block(32) for _ in range(4))


EXAMPLE = torch.zeros(1, 5)


def stepped_vit(plan: Any = tiny.VIT_PLAN, **how: Any) -> Any:
    return stepify(tiny.vit(), plan, **how).eval()


def native(blocks: list[nn.Module], plan: str, **how: Any) -> StepsNet:
    """StepsNet of the very same blocks."""
    parsed, rest = StepPlan.parse(plan), iter(blocks)
    return StepsNet([Stack([next(rest) for _ in range(depth)]) for depth in parsed.depths], parsed.widths, **how)


def test_a_stepped_vit_equals_stepsnet_of_the_same_blocks_bit_for_bit() -> None:
    model = stepped_vit()
    tiny.stir(model)
    x = torch.randn(2, 17, 64)
    assert torch.equal(model.blocks(x), native(list(model.blocks), tiny.VIT_PLAN).eval()(x))


class Gain(nn.Module):
    """A join with a parameter."""

    def __init__(self, _y_width: int, x_width: int, _channel_dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(x_width))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.cat((y, self.gain * x), -1)


@pytest.mark.parametrize("join", ["matched_grad", Gain])
@pytest.mark.parametrize("plan", [tiny.VIT_PLAN, "32x2, 64x0", "32x1, 48x0, 64x1"])
def test_joins_act_at_the_first_block_of_a_step(join: Join, plan: str) -> None:
    model = stepped_vit(plan, join=join)
    tiny.stir(model)
    net = native(copy.deepcopy(list(model.blocks)), plan, join=join).eval()
    gains = [
        part.join
        for block in model.blocks
        for part in (*getattr(block, "stepsnet_before", ()), *getattr(block, "stepsnet_after", ()))
    ]
    net.joins.load_state_dict(
        {f"{i}.{key}": value for i, join in enumerate(gains) for key, value in join.state_dict().items()}
    )
    for block in net.modules():
        block._modules.pop("stepsnet_before", None)
        block._modules.pop("stepsnet_after", None)
    x = torch.randn(2, 17, 64)
    assert len(gains) == len(net.joins)
    assert torch.equal(model.blocks(x), net(x))


def test_waiting_channels_are_those_of_the_embedding_until_their_step() -> None:
    model = stepped_vit()
    x = torch.randn(2, 17, 64)
    for number, block in enumerate(model.blocks[:6]):
        width = 32 if number < 4 else 48
        y = block(x)
        assert torch.equal(y[..., width:], x[..., width:])
        assert not torch.equal(y[..., :width], x[..., :width])
        x = y


def test_blocks_keep_their_class_and_survive_deepcopy_and_pickle() -> None:
    model = stepped_vit()
    from timm.models.vision_transformer import Block as TimmBlock

    assert {type(block).__name__ for block in model.blocks} == {"Block"}
    assert all(isinstance(block, TimmBlock) for block in model.blocks)
    assert "first 32 channels" in repr(model)
    x = torch.randn(1, 3, 32, 32)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(model(x), other(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("capture", [torch.fx.symbolic_trace, torch.jit.script], ids=["fx", "script"])
@pytest.mark.parametrize("join", ["plain", "matched_grad"])
@pytest.mark.parametrize(
    ("name", "path", "shape"),
    [
        ("vit_small_patch16_224", "blocks", (2, 16, 64)),
        ("convnext_atto", "stages.3.blocks", (2, 64, 4, 4)),
        ("resnet18", "layer4", (2, 32, 4, 4)),
    ],
)
def test_blocks_are_captured_by_fx_and_torchscript(
    name: str, path: str, shape: tuple[int, ...], join: str, capture: Any
) -> None:
    model = make_timm(name).eval()
    host = find_host(model, options=TIMM[name])
    blocks = stepify(model, two_steps(host), join=join, options=TIMM[name]).get_submodule(path)
    x = torch.randn(shape)
    for one in (x, x.transpose(1, -1).contiguous().transpose(1, -1)):  # another layout in memory
        torch.testing.assert_close(capture(blocks)(one), blocks(one))


class InPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.relu_())


class NotInPlace(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.relu())


def gradients_with(block: type[Block]) -> list[Tensor]:
    torch.manual_seed(0)
    model = stepify(Own(), "16x2, 32x2", make_block=lambda width, index: block(width), example=EXAMPLE)
    return list(torch.autograd.grad(model(torch.randn(3, 5)).square().sum(), list(model.parameters())))


def test_blocks_that_change_their_input_in_place_train() -> None:
    for one, other in zip(gradients_with(InPlace), gradients_with(NotInPlace), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # the layouts differ


@pytest.mark.parametrize("plan", [tiny.VIT_PLAN, 3])
def test_a_vit_in_bfloat16_stays_in_bfloat16(plan: Any) -> None:
    model = stepify(tiny.vit(depth=12).bfloat16(), plan)
    assert model(torch.zeros(1, 3, 32, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["vit_small_patch16_224", "resnet18"])
def test_models_for_grey_images_are_stepified(name: str) -> None:
    model = timm.create_model(name, num_classes=4, in_chans=1, **TIMM[name]).eval()
    stepify(model, two_steps(find_host(model, options=TIMM[name])), options=TIMM[name])
    assert model(torch.zeros(1, 1, 32, 32)).isfinite().all()


def test_every_parameter_of_a_stepped_model_gets_a_gradient() -> None:
    model = stepped_vit().train()
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_gradient_checkpointing_changes_no_gradient() -> None:
    model = stepped_vit().train()
    x = torch.randn(2, 3, 32, 32)
    gradients = []
    for on in (False, True):
        model.set_grad_checkpointing(on)
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_timms_features_and_drop_path_follow_the_new_depth() -> None:
    model = stepify(tiny.vit(drop_path_rate=0.3), tiny.VIT_PLAN).eval()
    assert [info["module"] for info in model.feature_info] == [f"blocks.{i}" for i in range(8)]
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0.3 * i / 7 for i in range(8)])
    x = torch.randn(1, 3, 32, 32)
    last, every = model.forward_intermediates(x)
    assert [f.shape for f in every] == [(1, 64, 4, 4)] * 8
    assert torch.equal(last, model.forward_features(x))


def test_a_number_of_steps_keeps_the_cost() -> None:
    model = stepify(tiny.vit(depth=12), 3)
    report = surgery_report(model)
    assert len(StepPlan.parse(report.plan_after)) == 3
    assert abs(report.macs_change) <= 0.03
    assert abs(report.params_change) <= 0.05
    assert report.blocks_after == len(model.blocks) > 12
    assert report.params_after == sum(p.numel() for p in model.parameters())


def test_a_budget_is_planned() -> None:
    report = surgery_report(stepify(tiny.vit(depth=8), {"blocks": 13, "macs": "7.5M"}))
    assert report.blocks_after == 13
    assert report.macs_after <= 7.5e6


def test_a_step_may_be_narrower_than_the_one_before() -> None:
    model = stepped_vit("64x1, 32x3, 64x2")
    tiny.stir(model)
    x = torch.randn(2, 17, 64)
    first = model.blocks[0](x)
    narrow, waiting = first.split((32, 32), -1)
    for block in model.blocks[1:4]:
        narrow = block(narrow)
    expected = model.blocks[5](model.blocks[4](torch.cat((narrow, waiting), -1)))
    assert torch.equal(model.blocks(x), expected)


def test_the_report_reads_well_and_is_json() -> None:
    report = surgery_report(stepped_vit(join="matched_grad"))
    assert "64x4  →  32x4, 48x2, 64x2   (join matched_grad)" in str(report)
    assert json.loads(report.to_json())["heads"] == {"32": 2, "48": 3, "64": 4}
    with pytest.raises(UsageError, match="not changed by stepify"):
        surgery_report(tiny.vit())


def test_a_stepped_vit_compiles_whole_and_exports() -> None:
    model = stepped_vit()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
        compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected)
        program: Any = torch.export.export(model, (x,))
        torch.testing.assert_close(program.module()(x), expected)


def stepped_llama(plan: Any = tiny.LLAMA_PLAN, **how: Any) -> Any:
    return stepify(tiny.llama(), plan, **how).eval()


def test_llama_generates_the_same_with_every_cache() -> None:
    model = stepped_llama()
    tiny.stir(model)
    x = tiny.tokens()
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(x, use_cache=False, **how)
    for cache in ({}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(x, **cache, **how), expected)
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == list(range(8))
    assert [layer.self_attn.k_proj.out_features for layer in model.model.layers] == [16] * 4 + [24] * 2 + [32] * 2


def test_with_as_many_heads_in_every_block_llamas_keys_and_values_have_one_shape(tmp_path: Path) -> None:
    model = stepped_llama("40x4, 64x2", heads="keep_count")
    x = tiny.tokens()
    found = model(x, output_attentions=True, use_cache=True)
    assert {layer.keys.shape for layer in found.past_key_values.layers} == {(2, 4, 6, 8)}
    assert surgery_report(model).heads == {40: 8, 64: 8}
    model.save_pretrained(tmp_path)
    check_same(load(tmp_path).eval(), model, lambda network: network(x).logits)


@pytest.mark.parametrize("make", [lambda: tiny.vit(embed_dim=96, num_heads=6, depth=8), lambda: tiny.gpt2(n_head=6)])
def test_steps_at_equal_cost_have_widths_that_as_many_heads_divide(make: Any) -> None:
    report = surgery_report(stepify(make(), 2, heads="keep_count"))
    assert list(report.heads.values()) == [6, 6]
    assert abs(report.macs_change) <= 0.03


def test_llama_returns_a_hidden_state_of_full_width_for_every_block() -> None:
    model = stepped_llama()
    found = model(tiny.tokens(), output_hidden_states=True)
    assert [state.shape for state in found.hidden_states] == [(2, 6, 64)] * 9
    assert torch.equal(found.hidden_states[1][..., 32:], found.hidden_states[0][..., 32:])


@pytest.mark.parametrize("change", [lambda model: stepify(model, tiny.LLAMA_PLAN), lambda model: deepen(model, "32x1")])
def test_a_model_that_recorded_its_states_before_records_the_new_blocks_too(change: Any) -> None:
    model = tiny.llama(output_hidden_states=True, output_attentions=True, attn_implementation="eager").eval()
    model(tiny.tokens())
    model = change(model).eval()
    found = model(tiny.tokens())
    blocks = model.config.num_hidden_layers
    assert (len(found.hidden_states), len(found.attentions)) == (blocks + 1, blocks)


def test_gradient_checkpointing_that_was_on_stays_on() -> None:
    model = tiny.llama()
    model.gradient_checkpointing_enable()
    model = stepify(model, tiny.LLAMA_PLAN)
    assert all(block.gradient_checkpointing for block in model.model.layers)


def test_llama_trains_with_gradient_checkpointing() -> None:
    model = stepped_llama().train()
    x = tiny.tokens()
    model(x, labels=x).loss.backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert all(gradient.any() for gradient in plain.values())
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(x, labels=x).loss.backward()
    assert all(torch.equal(p.grad, plain[name]) for name, p in model.named_parameters())


def test_llama_compiles_whole_and_exports() -> None:
    model = stepped_llama()
    model.config.use_cache = False
    x = tiny.tokens()
    with torch.no_grad():
        expected = model(x).logits
        compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x).logits, expected)
        program: Any = torch.export.export(model, (x,), strict=False)
        torch.testing.assert_close(program.module()(x).logits, expected)


@pytest.mark.parametrize(
    ("kind", "head", "sizes"),
    [
        ("gpt2", "GPT2ForSequenceClassification", {"n_embd": 64, "n_layer": 4, "n_head": 4, "pad_token_id": 0}),
        ("bert", "BertForMultipleChoice",
         {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}),
    ],
)  # fmt: skip
def test_heads_that_need_more_than_an_example_are_left_out_of_the_trial(
    kind: str, head: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, vocab_size=40, **sizes)
    model = stepify(getattr(transformers, head)(config), "32x4, 64x2").eval()
    save(model, tmp_path)
    tokens = tiny.tokens() if kind == "gpt2" else tiny.tokens(batch=6).reshape(2, 3, 6)
    check_same(load(tmp_path).eval(), model, lambda network: network(tokens).logits)


def test_llama_at_equal_cost() -> None:
    report = surgery_report(stepify(tiny.llama(num_hidden_layers=8), 3))
    assert abs(report.macs_change) <= 0.03
    assert abs(report.params_change) <= 0.05


def test_a_model_of_our_own_needs_a_function_that_makes_blocks() -> None:
    model: Any = stepify(Own(), "16x2, 32x3", make_block=lambda width, index: Block(width), example=torch.zeros(1, 5))
    assert [block.fc.in_features for block in model.body] == [16, 16, 32, 32, 32]
    assert model(torch.randn(2, 5)).shape == (2, 3)
    assert surgery_report(model).plan_before == "32x4"
    host = Host(Own(), (torch.zeros(1, 5),), lambda width, index: Block(width), blocks=["body"])
    assert [(stage.path, stage.width, stage.depth) for stage in host.stages] == [("body", 32, 4)]


def test_a_plan_that_does_not_run_leaves_the_model_as_it_was() -> None:
    model = Own()
    expected = model(x := torch.ones(1, 5))
    with pytest.raises(UsageError, match="does not run with the plan '16x2, 32x3'"):
        stepify(model, "16x2, 32x3", make_block=lambda width, index: Block(8), example=torch.zeros(1, 5))
    assert torch.equal(model(x), expected)
    assert len(model.body) == 4


def test_a_plan_that_does_not_run_leaves_names_as_they_were() -> None:
    model = NamedOwn()
    keys = list(model.state_dict())
    with pytest.raises(UsageError, match="does not run"):
        stepify(model, "16x2, 32x3", make_block=lambda width, index: Block(8), example=EXAMPLE)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize(
    ("make", "plan", "how", "message"),
    [
        (tiny.vit, "32x4, 48x4", {}, "ends at width 48, but VisionTransformer is 64 wide"),
        (
            lambda: tiny.vit(mlp_ratio=2),
            tiny.VIT_PLAN,
            {},
            r"other blocks than this model \(.*fc.*\); from Python, give the options of create_model",
        ),
        (tiny.vit, "128x2, 64x2", {}, "has a step of 128 channels; the model has 64"),
        (tiny.vit, "64x2, 64x2", {}, "neighbouring steps must differ"),
        (tiny.vit, "20x2, 64x2", {"heads": "keep_count", "join": "no"}, "there is no join 'no'"),
        (tiny.vit, "30x2, 64x2", {"heads": "keep_count"}, "4 heads do not divide width 30"),
        (tiny.vit, 2, {"heads": "many"}, "heads='many' is not known"),
        (tiny.llama, "40x2, 64x2", {}, "multiples of 16 .*, not 40"),
        (
            lambda: make_transformers("GPTNeoXForCausalLM"),
            "32x2, 64x2",
            {"heads": "keep_count"},
            "its rotary positions fix the head dimension, and its configuration has no head_dim",
        ),
        (tiny.llama, 0, {}, "the number of steps is at least 1"),
        (tiny.llama, 5, {}, "5 steps, each √2 narrower than the next, do not fit into width 64"),
        (tiny.llama, "32x1, 64x1; 64x1", {}, "the network has 1 stage, the plan 2"),
        (tiny.llama, "64x2", {"blocks": "model.nothing"}, "LlamaForCausalLM has no module of that name"),
        (
            WithUnused,
            2,
            {"make_block": Block, "example": EXAMPLE, "blocks": "unused"},
            "the example does not reach the block 'unused.0'",
        ),
        (Own, 2, {}, "neither a model of timm.create_model nor of transformers; give make_block="),
        (
            lambda: nn.Sequential(nn.Linear(2, 2)),
            2,
            {"make_block": Block, "example": torch.zeros(1, 2)},
            "name it with blocks=",
        ),
    ],
)
def test_bad_input_is_answered_in_one_sentence(make: Any, plan: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        stepify(make(), plan, **how)


def test_a_model_is_stepified_once() -> None:
    with pytest.raises(UsageError, match="was stepified or deepened before"):
        stepify(stepped_vit(), tiny.VIT_PLAN)
