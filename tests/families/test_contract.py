"""What holds for every model of the zoo, shown on the tiny members of all families."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from stepsnet.blocks.residual import DropPath
from stepsnet.families import create_model, layer_ids, list_models
from stepsnet.families.language import Transformer
from tests.families.zoo import TINY, VARIANTS, VISION, example, shake, variant, vision
from tests.macro.nets import outputs_of

every_variant = pytest.mark.parametrize("key", VARIANTS)
every_model = pytest.mark.parametrize("name", TINY)
every_vision_model = pytest.mark.parametrize("name", VISION)


def test_all_the_papers_models_have_their_names() -> None:
    sizes = {
        "resnet": ["18", "34", "50"],
        "deit_": ["tiny", "small", "base", *(f"deep_d{n}" for n in (24, 36, 48, 72, 96))],
        "swin_": ["tiny", "small", "base"],
        "swinpp_": ["tiny", "small", "base"],
        "transformer_": ["30m", "44m", "63m"],
    }
    twins = [f"{prefix}{family}{size}" for family, all_sizes in sizes.items() for size in all_sizes for prefix in ("", "steps_")]
    deep_swin = [f"swin_deep_d{n}" for n in (24, 48, 72, 96)] + [f"steps_swin_deep_d{n}" for n in (14, 48, 64, 96)]
    tiny = [f"test_{prefix}{family.rstrip('_')}" for family in sizes for prefix in ("", "steps_")]
    assert list_models() == sorted([*twins, *deep_swin, *tiny, "steps_deit_small_d60"])


def test_listing_by_pattern() -> None:
    assert list_models("steps_resnet*") == ["steps_resnet18", "steps_resnet34", "steps_resnet50"]


@pytest.mark.parametrize("name", [name for name in list_models() if re.search(r"_d\d+$", name)])
def test_dn_counts_blocks(name: str) -> None:
    assert len(create_model(name, device="meta").blocks_in_order()) == int(name.rsplit("_d", 1)[1])


@pytest.mark.parametrize("name", [name for name in list_models() if "steps_" not in name])
def test_a_baseline_has_one_step_a_stage(name: str) -> None:
    assert all(len(plan) == 1 for plan in create_model(name, device="meta").plans)


@every_model
def test_tiny_is_tiny(name: str) -> None:
    assert sum(parameter.numel() for parameter in create_model(name).parameters()) <= 100_000


@every_variant
@pytest.mark.parametrize("size", [(32, 32), (64, 40), (37, 51)], ids=str)
def test_any_picture_or_text_size_goes_in(key: str, size: tuple[int, int]) -> None:
    model = variant(key)
    x = example(model, *size)
    logits = model(x)
    assert logits.shape == ((2, size[0], model.vocab_size) if isinstance(model, Transformer) else (2, 10))
    assert logits.isfinite().all()


@every_variant
def test_every_parameter_gets_a_finite_gradient(key: str) -> None:
    model = shake(variant(key))
    model(example(model)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@every_model
def test_one_step_of_the_reverse_is_the_baseline(name: str) -> None:
    if "steps" in name:
        pytest.skip("only baselines have one step")
    forward, reverse = create_model(name), create_model(name, macro="reverse")
    reverse.load_state_dict(forward.state_dict())
    x = example(forward)
    assert torch.equal(forward.eval()(x), reverse.eval()(x))


@every_variant
def test_checkpointing_changes_no_gradient(key: str) -> None:
    model = shake(variant(key))
    x = example(model)
    gradients = []
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        model(x).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


@every_model
def test_checkpointing_keeps_fewer_activations(name: str) -> None:
    kept = []
    for checkpointing in (False, True):
        model = create_model(name)
        model.set_grad_checkpointing(checkpointing)
        sizes = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal sizes
            sizes += tensor.numel() * (not isinstance(tensor, nn.Parameter))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(example(model))
        kept.append(sizes)
    assert kept[1] < 0.9 * kept[0]


@every_model
def test_no_weight_decay_names_parameters(name: str) -> None:
    model = create_model(name)
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(("name", "spared"), [("test_deit", "pos_embed"), ("test_deit", "cls_token"), ("test_swin", "bias_table")])
def test_positions_are_spared_from_weight_decay(name: str, spared: str) -> None:
    assert any(parameter.endswith(spared) for parameter in create_model(name).no_weight_decay())


@every_variant
def test_layer_ids_are_complete_and_grow_from_stem_to_head(key: str) -> None:
    model = variant(key)
    ids = layer_ids(model)
    assert list(ids) == [name for name, _ in model.named_parameters()]
    blocks = len(model.blocks_in_order())
    assert set(ids.values()) == set(range(blocks + 2))
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    for number, block in enumerate(model.blocks_in_order(), start=1):
        assert {ids[own[id(parameter)]] for parameter in block.parameters()} == {number}


@pytest.mark.parametrize(
    ("name", "parameter", "layer"),
    [
        ("test_steps_deit", "pos_embed", 0),
        ("test_steps_deit", "head.weight", 9),
        ("test_steps_deit", "norm.weight", 9),
        ("test_steps_deit", "net.joins.1.gain", 7),  # 4 + 2 blocks before it
        ("test_steps_swin", "patch_embed.proj.weight", 0),
        ("test_steps_swin", "stages.1.merging.reduction.weight", 3),  # belongs to the block that follows
        ("test_steps_resnet", "stages.0.opening.branch.conv1.weight", 1),
        ("test_steps_resnet", "stem.conv.weight", 0),
        ("test_steps_transformer", "embed.weight", 0),
        ("test_steps_transformer", "norm.weight", 9),
    ],
)
def test_where_single_parameters_belong(name: str, parameter: str, layer: int) -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

    assert layer_ids(create_model(name, join=Gain()))[parameter] == layer


@every_model
def test_drop_path_grows_linearly_along_the_whole_depth(name: str) -> None:
    model = create_model(name, drop_path_rate=0.3)
    rates = [module.rate for module in model.modules() if isinstance(module, DropPath)]
    levels = sorted(set(rates))
    assert rates == sorted(rates)
    assert levels[0] == 0.0
    assert levels[-1] == pytest.approx(0.3)
    torch.testing.assert_close(torch.tensor(levels).diff(), torch.full((len(levels) - 1,), 0.3 / (len(levels) - 1)))
    openings = len(model.plans) if model.family == "resnet" else 0
    assert len(levels) == len(model.blocks_in_order()) + openings


@every_model
def test_drop_path_only_acts_in_training(name: str) -> None:
    model = shake(create_model(name, drop_path_rate=0.9))
    x = example(model)
    assert torch.equal(model.eval()(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


@every_variant
def test_a_model_made_on_the_meta_device_is_filled_like_any_other(key: str) -> None:
    hollow = variant(key, device="meta")
    assert all(tensor.is_meta for tensor in hollow.state_dict().values())
    hollow.to_empty(device="cpu")
    for tensor in hollow.state_dict().values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
    usual = variant(key)
    for model in (hollow, usual):
        torch.manual_seed(3)
        model.reset_parameters()
    filled = hollow.state_dict()
    assert [name for name, tensor in usual.state_dict().items() if not torch.equal(tensor, filled[name])] == []
    assert hollow(example(hollow)).isfinite().all()


@every_model
def test_resetting_starts_a_trained_model_over(name: str) -> None:
    model = create_model(name)
    torch.manual_seed(1)
    model.reset_parameters()
    first = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model(example(model)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    torch.manual_seed(1)
    model.reset_parameters()
    assert all(torch.equal(tensor, first[key]) for key, tensor in model.state_dict().items())


@every_variant
def test_every_module_that_holds_parameters_can_reset_them(key: str) -> None:
    for name, module in variant(key).named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            assert callable(getattr(module, "reset_parameters", None)), name


@pytest.mark.parametrize("again", [False, True], ids=["made", "reset"])
@pytest.mark.parametrize("name", ["deit_tiny", "swin_tiny", "transformer_30m"])
def test_transformers_start_as_deit_does(name: str, again: bool) -> None:
    model = create_model(name, plan=2)
    if again:
        model.reset_parameters()
    for key, parameter in model.named_parameters():
        if key.startswith("patch_embed.proj"):
            continue  # a convolution, which DeiT leaves to PyTorch
        if parameter.dim() > 1:
            noise = 5 / (2 * parameter.numel()) ** 0.5
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=noise), key
            assert abs(float(parameter.detach().mean())) < 0.02 * 2 * noise, key
        else:
            assert parameter.unique().tolist() == [1.0 if "norm" in key and key.endswith("weight") else 0.0], key


@every_vision_model
def test_default_cfg_says_how_to_feed_it(name: str) -> None:
    model = vision(name, num_classes=7)
    config = model.default_cfg
    assert config["input_size"] == (3, 32, 32)
    assert config["num_classes"] == 7
    assert config["architecture"] == name
    assert config["family"] in name
    assert len(config["mean"]) == len(config["std"]) == 3


@every_vision_model
def test_head_and_features_are_the_two_halves_of_forward(name: str) -> None:
    model = shake(vision(name)).eval()
    x = example(model)
    features = model.forward_features(x)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    assert torch.equal(model.forward_head(features), model(x))
    assert torch.equal(model.get_classifier()(pooled), model(x))


@every_vision_model
def test_a_new_classifier(name: str) -> None:
    model = vision(name)
    model.reset_classifier(3)
    assert model(example(model)).shape == (2, 3)
    assert model.num_classes == 3
    model.reset_classifier(0)
    assert model(example(model)).shape == (2, model.num_features)
    assert isinstance(model.get_classifier(), nn.Identity)


@every_vision_model
def test_a_new_classifier_is_where_the_model_is(name: str) -> None:
    model = vision(name).to(torch.float64)
    model.reset_classifier(3)
    assert model(example(model).double()).dtype == torch.float64


@pytest.mark.parametrize("name", ["test_resnet", "test_steps_resnet"])
def test_channels_last_gives_the_same(name: str) -> None:
    model = shake(vision(name)).eval()
    x = example(model)
    expected = model(x)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's annotations have forgotten this one
    with outputs_of(model.blocks_in_order()) as outputs:
        torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected)
    assert all(output.is_contiguous(memory_format=torch.channels_last) for output in outputs)
