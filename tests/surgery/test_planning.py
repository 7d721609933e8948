"""Plans for models of other libraries."""

from __future__ import annotations

import timm

import stepsnet


def test_the_predicted_cost_is_that_of_the_stepified_model() -> None:
    found = stepsnet.plan(timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32), blocks=8)
    model = stepsnet.stepify(timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32), found.plan)
    report = stepsnet.surgery_report(model)
    assert (report.params_after, report.macs_after) == (found.chosen.params, found.chosen.macs)
    assert (report.params_before, report.macs_before) == (found.plain.params, found.plain.macs)


def test_the_model_is_not_changed() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32)
    before = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    stepsnet.plan(model)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == before
