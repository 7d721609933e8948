"""Every recipe, and every command in its docstring, is one that can be run."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import torch

from stepsnet.data.config import IMAGE_KINDS
from stepsnet.data.images.augment import deit_augment
from stepsnet.models import create_model, list_models
from stepsnet.tasks import make_task
from stepsnet.train.config import TrainConfig, customise
from stepsnet.train.recipes import RECIPES, explain, get_recipe

WANTED = {
    "imagenet_deit", "imagenet_swin", "imagenet_resnet", "cifar10", "fashion_mnist",
    "tiny_imagenet", "image_folder", "digits", "language", "python_docs",
}  # fmt: skip
COMMANDS = [(name, line.strip()) for name in RECIPES for line in explain(name).splitlines() if f"stepsnet train {name}" in line]


def created(config: TrainConfig) -> torch.nn.Module:
    data: dict[str, Any] = {"vocab_size": 256} if config.task == "language" else {"num_classes": 10, "img_size": config.data.img_size}
    return create_model(config.model, plan=config.plan, join=config.join, device="meta", **data, **config.model_args)


def test_the_recipes_are_all_there() -> None:
    assert set(RECIPES) >= WANTED


@pytest.mark.parametrize("name", sorted(WANTED))
def test_a_recipe_says_command_time_and_result(name: str) -> None:
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
    task = make_task(config.task, config.data, config.augment, seed=0, smoothing=config.smoothing)
    network = create_model(model, **task.model_kwargs())
    assert isinstance(network, torch.nn.Module)
    batch = task.collate([task.train[0, index] for index in range(4)])
    loss = task.loss(network, task.prepare(batch, 0))
    assert 1.0 < loss.item() < 5.0


@pytest.mark.parametrize("model", [name for name in list_models("test_*") if "transformer" in name])
def test_text_feeds_the_language_models(model: str) -> None:
    config = get_recipe("python_docs")
    task = make_task(config.task, config.data, config.augment, seed=0, smoothing=0.0)
    network = create_model(model, **task.model_kwargs())
    batch = task.collate([task.valid[0, index] for index in range(2)])
    assert 4.0 < task.loss(network, batch).item() < 8.0
