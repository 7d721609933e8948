"""The recipes of Tables 2 and 3 have the settings that the paper and Swin train with."""

from __future__ import annotations

import re

import pytest

from stepsnet.errors import UsageError
from stepsnet.train.config import customise
from stepsnet.train.recipes import explain, get_recipe

DENSE = ("coco_mask_rcnn", "coco_cascade_mask_rcnn", "object_folder", "ade20k_upernet", "mask_folder")


@pytest.mark.parametrize("name", DENSE)
def test_a_recipe_says_command_time_and_result(name: str) -> None:
    text = explain(name)
    assert f"stepsnet train {name}" in text
    assert re.search(r"^Time: ", text, re.MULTILINE)
    assert re.search(r"^Expected", text, re.MULTILINE)


def test_mask_rcnn_is_trained_for_one_schedule() -> None:
    config = get_recipe("coco_mask_rcnn")
    assert (config.epochs, config.batch_size, config.lr, config.optim.weight_decay) == (12, 16, 1e-4, 0.05)
    assert (config.data.img_size, config.data.max_size, config.detect.heads) == (800, 1333, "mask_rcnn")
    assert (config.detect.proposals, config.detect.rois, config.detect.detections) == (1000, 512, 100)


def test_the_cascade_is_trained_for_three_at_many_scales() -> None:
    config = get_recipe("coco_cascade_mask_rcnn")
    assert (config.epochs, config.detect.heads, config.augment.short_side) == (36, "cascade", (480, 800))
    jittered = customise(config, ["augment.scale=0.1,2.0", "augment.short_side=0,0", "data.img_size=1024"])
    assert (jittered.augment.scale, jittered.data.img_size) == ((0.1, 2.0), 1024)


def test_upernet_is_trained_as_swin_trains_it() -> None:
    config = get_recipe("ade20k_upernet")
    assert (config.iters, config.batch_size, config.lr, config.data.img_size) == (160_000, 16, 6e-5, 512)
    assert (config.schedule.kind, config.schedule.power, config.schedule.warmup_iters) == ("poly", 1.0, 1500)
    assert (config.data.mask_values, 0 in config.data.void_values) == (list(range(1, 151)), True)
    assert (config.segment.channels, config.segment.auxiliary_weight) == (512, 0.4)


def test_segmentation_is_not_sharded() -> None:
    with pytest.raises(UsageError, match="take parallel=ddp"):
        customise(get_recipe("mask_folder"), ["parallel=fsdp"])
