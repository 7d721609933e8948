"""Every recipe, and every command in its docstring, can be run."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import torch

from stepsnet.cost import Cost
from stepsnet.data.config import IMAGE_KINDS, deit_augment
from stepsnet.errors import UsageError
from stepsnet.models import create_model, list_models
from stepsnet.train.build import task_of
from stepsnet.train.config import TrainConfig, customise
from stepsnet.train.recipes import RECIPES, explain, get_recipe

WANTED = {
    "imagenet_deit", "imagenet_swin", "imagenet_resnet", "cifar10", "fashion_mnist", "tiny_imagenet", "image_folder",
    "digits", "language", "python_docs", "gutenberg", "wikitext103", "coco_mask_rcnn", "coco_cascade_mask_rcnn",
    "object_folder", "ade20k_upernet", "mask_folder",
}  # fmt: skip
COMMANDS = [
    (name, line.strip()) for name in RECIPES for line in explain(name).splitlines() if f"stepsnet train {name}" in line
]


def created(config: TrainConfig) -> torch.nn.Module:
    data: dict[str, Any] = (
        {"vocab_size": 256} if config.task == "language" else {"num_classes": 10, "img_size": config.data.img_size}
    )
    return create_model(config.model, plan=config.plan, join=config.join, device="meta", **data, **config.model_args)


def test_all_recipes_are_registered() -> None:
    assert set(RECIPES) == WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_recipe_documents_command_time_and_result(name: str) -> None:
    text = explain(name)
    assert f"stepsnet train {name}" in text
    assert re.search(r"^Time: ", text, re.MULTILINE)
    assert re.search(r"^Expected\b", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_a_documented_command_makes_a_model(name: str, command: str) -> None:
    words = [word for word in shlex.split(command.split(f"train {name}", 1)[1]) if not word.startswith("--")]
    config = customise(get_recipe(name), words)
    assert (config.task == "classification") == (config.data.kind in IMAGE_KINDS)
    assert sum(parameter.numel() for parameter in created(config).parameters()) > 0


@pytest.mark.parametrize("name", ["imagenet_deit", "imagenet_swin", "imagenet_resnet"])
def test_imagenet_is_trained_as_the_paper_says(name: str) -> None:
    config = get_recipe(name)
    assert (config.epochs, config.lr, config.optim.lr_batch, config.optim.name) == (300, 1e-3, 1024, "adamw")
    assert (config.schedule.kind, config.schedule.warmup_epochs, config.optim.weight_decay) == ("cosine", 20, 0.05)
    assert config.augment == deit_augment()


@pytest.mark.parametrize("model", [name for name in list_models("test_*") if "transformer" not in name])
def test_digits_feed_every_family(model: str) -> None:
    config = get_recipe("digits")
    task = task_of(config)
    network = create_model(model, **task.model_kwargs())
    assert isinstance(network, torch.nn.Module)
    batch = task.collate([task.train[0, index] for index in range(4)])
    loss = task.loss(network, task.prepare(batch, 0))
    assert 1.0 < loss.item() < 5.0


@pytest.mark.parametrize("model", [name for name in list_models("test_*") if "transformer" in name])
def test_text_feeds_the_language_models(model: str) -> None:
    config = get_recipe("python_docs")
    task = task_of(config)
    network = create_model(model, **task.model_kwargs())
    batch = task.collate([task.valid[0, index] for index in range(2)])
    assert 4.0 < task.loss(network, batch).item() < 8.0


def test_mask_rcnn_has_the_1x_settings() -> None:
    config = get_recipe("coco_mask_rcnn")
    assert (config.epochs, config.batch_size, config.lr, config.optim.weight_decay) == (12, 16, 1e-4, 0.05)
    assert (config.data.img_size, config.data.max_size, config.detect.heads) == (800, 1333, "mask_rcnn")
    assert (config.detect.proposals, config.detect.rois, config.detect.detections) == (1000, 512, 100)


def test_cascade_mask_rcnn_has_the_3x_multi_scale_settings() -> None:
    config = get_recipe("coco_cascade_mask_rcnn")
    assert (config.epochs, config.detect.heads, config.augment.short_side) == (36, "cascade", (480, 800))
    jittered = customise(config, ["augment.scale=0.1,2.0", "augment.short_side=0,0", "data.img_size=1024"])
    assert (jittered.augment.scale, jittered.data.img_size) == ((0.1, 2.0), 1024)


def test_upernet_has_the_settings_of_swin() -> None:
    config = get_recipe("ade20k_upernet")
    assert (config.iters, config.batch_size, config.lr, config.data.img_size) == (160_000, 16, 6e-5, 512)
    assert (config.schedule.kind, config.schedule.power, config.schedule.warmup_iters) == ("poly", 1.0, 1500)
    assert (config.data.mask_values, 0 in config.data.void_values) == (list(range(1, 151)), True)
    assert (config.segment.channels, config.segment.auxiliary_weight) == (512, 0.4)


def test_segmentation_refuses_fsdp() -> None:
    with pytest.raises(UsageError, match="use parallel=ddp"):
        customise(get_recipe("mask_folder"), ["parallel=fsdp"])


@pytest.mark.parametrize("model", list_models("*transformer_*m"))
def test_wikitext103_is_the_papers_table_4_for_all_six_models(model: str) -> None:
    config = customise(get_recipe("wikitext103"), [f"model={model}", "data.root=somewhere"])
    assert (config.data.kind, config.data.seq_len, config.batch_size * config.data.seq_len) == ("tokens", 128, 128_000)
    made = create_model(config.model, plan=config.plan, device="meta", **config.model_args)
    millions = int(model.rpartition("_")[2][:-1])
    assert sum(parameter.numel() for parameter in made.parameters()) / 1e6 == pytest.approx(millions, abs=1)


def cost(config: TrainConfig) -> tuple[int, Cost]:
    """Parameters without the embedding, and the whole cost."""
    made = create_model(config.model, plan=config.plan, vocab_size=256, device="meta", **config.model_args)
    return sum(parameter.numel() for name, parameter in made.named_parameters() if name != "embed.weight"), made.cost()


@pytest.mark.parametrize("recipe", ["gutenberg", "python_docs"])
def test_a_model_by_name_is_trained_as_it_is(recipe: str) -> None:
    """The recipe's plan and width are of its own model."""
    config = customise(get_recipe(recipe), ["model=transformer_mini"])
    assert (config.plan, config.model_args) == (None, {})
    config = customise(get_recipe(recipe), ["model=transformer_mini", "plan=2", "model_args.embed_dim=64"])
    assert (config.plan, config.model_args) == (2, {"embed_dim": 64})


def test_both_python_docs_networks_have_equal_cost() -> None:
    (steps, _), (plain, _) = (cost(customise(get_recipe("python_docs"), words)) for words in ([], ["plan=none"]))
    assert steps == pytest.approx(plain, rel=0.03)


def test_both_gutenberg_networks_have_equal_cost() -> None:
    steps, total = cost(get_recipe("gutenberg"))
    residual, other = cost(customise(get_recipe("gutenberg"), ["plan=64x48", "model_args.embed_dim=64"]))
    assert total.blocks == other.blocks == 48
    assert steps / residual == pytest.approx(1, abs=0.03)
    assert total.macs / other.macs == pytest.approx(1, abs=0.05)
