"""The configuration: typed words, error messages, the JSON round trip."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.errors import UsageError
from stepsnet.train.build import configure
from stepsnet.train.config import TrainConfig, customise, customise_resumed, tasks_of
from stepsnet.train.recipes import get_recipe
from stepsnet.train.typed import dotted_keys, from_dict, to_dict


@pytest.fixture
def config() -> TrainConfig:
    return TrainConfig(
        task="classification", model="test_deit", epochs=3, batch_size=32, lr=1e-3, data=DataConfig(kind="digits")
    )


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("lr=3e-4", 3e-4),
        ("lr=1", 1.0),
        ("batch_size=64", 64),
        ("iters=1e3", 1000),
        ("compile=yes", True),
        ("compile=false", False),
        ("plan=3", 3),
        ("plan=96x12, 136x6", "96x12, 136x6"),
        ('plan=["64x1", "128x1"]', ["64x1", "128x1"]),
        ("plan=none", None),
        ("out=123", "123"),
        ("parallel=ddp", "ddp"),
        ("parallel=none", "none"),
        ("optim.betas=0.9,0.95", (0.9, 0.95)),
        ("optim.betas=(0.9, 0.95)", (0.9, 0.95)),
        ("data.mask_values=2,1", [2, 1]),
        ("data.mask_values=2", [2]),
        ("data.class_names=sky, road", ["sky", "road"]),
        ("data.class_names=sky", ["sky"]),
        ("eval.every=none", None),
        ("eval.every=5", 5),
        ("data.root=/somewhere/else", "/somewhere/else"),
        ("augment.mixup=0.8", 0.8),
        ("augment.crop=none", "none"),
    ],
)
def test_a_word_becomes_a_value_of_the_fields_type(config: TrainConfig, word: str, value: object) -> None:
    task: Any = tasks_of(word.partition("=")[0])[0]
    found: Any = customise(replace(config, task=task), [word])
    for name in word.partition("=")[0].split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("batchsize=3", "no key 'batchsize'; nearest: batch_size"),
        ("optim.weightdecay=0.1", "nearest: optim.weight_decay"),
        ("batch_size=many", "batch_size takes a whole number, not 'many'."),
        ("batch_size=2.5", "batch_size takes a whole number, not '2.5'"),
        ("lr=fast", "lr takes a number, not 'fast'"),
        ("compile=perhaps", "compile takes true or false"),
        ("parallel=dpp", "parallel takes none or ddp or fsdp, not 'dpp'; nearest: ddp"),
        ("optim.betas=0.9", "optim.betas takes 2 values separated by commas"),
        ("optim.betas=a,b", "optim.betas takes 2 values separated by commas, not 'a,b'"),
        ("eval.every=often", "eval.every takes a whole number or none"),
        ("lr", "not of the form key=value"),
        ("batch_size=0", "batch_size is 0, but must be above 0"),
        (f"seed={1 << 64}", "must fit into 64 bits"),
        ("augment.flip=2", "augment.flip is 2.0"),
        ("accumulate=3", "cannot be split into accumulate=3"),
        ("optim.betas=0.9,1", "optim.betas is (0.9, 1.0), but both must be at least 0 and below 1"),
        ("optim.eps=-1", "optim.eps is -1.0, but cannot be negative"),
        ("schedule.power=-1", "schedule.power is -1.0, but cannot be negative"),
    ],
)
def test_a_wrong_word_is_an_error_of_one_sentence(config: TrainConfig, word: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        customise(config, [word])


def test_iters_replace_epochs_and_both_are_refused(config: TrainConfig) -> None:
    assert (customise(config, ["iters=7"]).iters, customise(config, ["iters=7"]).epochs) == (7, None)
    with pytest.raises(UsageError, match="give one of the two"):
        customise(config, ["iters=7", "epochs=7"])


@pytest.mark.parametrize(
    ("recipe", "words", "sentence"),
    [
        ("coco_mask_rcnn", ["schedule.end=0.1"],
         "schedule.end has no effect with schedule.kind=steps; it is for schedule.kind=cosine or poly."),
        ("coco_mask_rcnn", ["augment.short_side=480,800", "augment.scale=0.1,2"],
         "augment.short_side has no effect with augment.scale=0.1,2; it is for augment.scale=1,1."),
        ("mask_folder", ["segment.auxiliary_channels=8", "segment.auxiliary_weight=0"],
         "segment.auxiliary_channels has no effect unless segment.auxiliary_weight is above 0."),
        ("coco_mask_rcnn", ["data.max_size=512"],
         "data.max_size=512, the limit of the long side, is below data.img_size=800, the short side"),
        ("mask_folder", ["data.img_size=4096"], "data.max_size=2048, the limit of the long side, is below"),
        ("digits", ["schedule.warmup_iters=5", "schedule.warmup_epochs=1"], "give one of the two"),
        ("mask_folder", ["segment.scales=0.5,1.75,1"], "segment.scales=0.5,1.75,1 leaves out the scale 1.75"),
        ("mask_folder", ["segment.scales=1,1,3"], "segment.scales=1,1,3 is the same scale 3 times"),
        ("digits", ["augment.mixup=0.5", "augment.mix_prob=0"],
         "augment.mixup has no effect unless augment.mix_prob is above 0."),
        ("digits", ["augment.mixup=0.5", "augment.cutmix=1", "augment.mix_switch=0"],
         "augment.mix_switch=0 leaves augment.cutmix without effect; give augment.cutmix=0."),
        ("digits", ["weights=RUN", "freeze=body", "optim.layer_decay=0.5"],
         "optim.layer_decay has no effect with freeze=body"),
        ("digits", ["weights=RUN", "freeze=body", "drop_path=0.5"],
         "drop_path has no effect with freeze=body"),
        ("digits", ["lr=1e400"], "lr takes a number, not '1e400'."),
        ("mask_folder", ["segment.norm=sync"], "segment.norm=sync has no effect with parallel=none"),
        ("coco_cascade_mask_rcnn", ["detect.norm=sync"], "detect.norm=sync has no effect with parallel=none"),
        ("digits", ["optim.name=sgd", "optim.nesterov=true", "optim.momentum=0"],
         "optim.nesterov=true has no effect with optim.momentum=0"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)  # fmt: skip
def test_a_key_that_another_key_turns_off_is_refused(recipe: str, words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        customise(get_recipe(recipe), words)


def test_a_range_of_short_sides_can_be_turned_off_for_large_scale_jitter() -> None:
    changed = customise(get_recipe("coco_cascade_mask_rcnn"), ["augment.scale=0.1,2.0", "augment.short_side=0,0"])
    assert changed.augment.short_side == (0, 0)


def test_a_warm_up_in_steps_replaces_that_of_the_recipe_in_epochs() -> None:
    schedule = customise(get_recipe("digits"), ["schedule.warmup_iters=5"]).schedule
    assert (schedule.warmup_iters, schedule.warmup_epochs) == (5, 0)
    schedule = customise(get_recipe("language"), ["schedule.warmup_epochs=0.5"]).schedule
    assert (schedule.warmup_iters, schedule.warmup_epochs) == (0, 0.5)
    schedule = customise(get_recipe("digits"), ["schedule.warmup_iters=5", "schedule.warmup_epochs=0"]).schedule
    assert (schedule.warmup_iters, schedule.warmup_epochs) == (5, 0)


@pytest.mark.parametrize(("words", "join"), [([], "matched_grad"), (["join=plain"], "plain")])
def test_another_model_has_the_join_of_its_name(words: list[str], join: str) -> None:
    assert configure(get_recipe("gutenberg"), ["model=steps_transformer_mini", *words]).join == join


def test_model_args_takes_any_key(config: TrainConfig) -> None:
    changed = customise(config, ["model_args.embed_dim=64", "model_args.global_pool=avg"])
    assert changed.model_args == {"embed_dim": 64, "global_pool": "avg"}
    assert config.model_args == {}


def test_numbers_with_commas_are_a_list_in_model_args(config: TrainConfig) -> None:
    changed = customise(config, ["model_args.depths=1,1,2", "model_args.plan=8x1, 16x1"])
    assert changed.model_args == {"depths": [1, 1, 2], "plan": "8x1, 16x1"}


def test_json_round_trip(config: TrainConfig) -> None:
    changed = customise(
        config, ["plan=64x2, 96x1", "optim.betas=0.9,0.95", "model_args.a=[1,2]", "iters=5", "eval.every=2"]
    )
    assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(changed)))) == changed


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"optim": {"nme": "sgd"}}, "no key 'optim.nme'; nearest: optim.name"),
        ({"optim": 3}, "optim is 3, but must hold the keys name"),
        ({"lr": "x"}, "lr takes a number"),
        ({"data": {"root": "."}}, "data.kind is missing"),
    ],
)
def test_a_damaged_config_file_is_an_error_of_one_sentence(
    config: TrainConfig, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        from_dict(TrainConfig, {**to_dict(config), **change})


def test_a_resumed_run_changes_only_where_and_how_it_runs(config: TrainConfig) -> None:
    assert customise_resumed(config, ["workers=2", "parallel=ddp"]).workers == 2
    with pytest.raises(UsageError, match="'lr' cannot change"):
        customise_resumed(config, ["lr=1"])


def test_the_learning_rate_scales_with_the_batch(config: TrainConfig) -> None:
    assert config.peak_lr == 1e-3
    assert customise(config, ["optim.lr_batch=1024", "batch_size=512"]).peak_lr == 5e-4


def test_every_key_is_documented_by_its_type() -> None:
    assert {
        "model",
        "plan",
        "join",
        "seed",
        "iters",
        "epochs",
        "batch_size",
        "lr",
        "out",
        "workers",
        "parallel",
        "data.root",
        "checkpoint.every",
    } <= set(dotted_keys(TrainConfig))
