"""Plans for models of other libraries."""

from __future__ import annotations

import timm

import stepsnet
from stepsnet.planner.subject import count, with_all_multiples
from stepsnet.surgery.planning import HostSubject


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


def test_the_twin_is_the_widest_that_fits_also_between_the_widths_of_the_search() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32)
    found = stepsnet.plan(model, blocks=6)
    subject = HostSubject(model, "vit", {})
    counted = count(subject, range(112, 192, 8))
    params, macs, _ = counted.fixed
    costs = {width: (params + 6 * cost[0], macs + 6 * cost[1]) for width, cost in counted.stages[0].costs.items()}
    limits = found.limits["params"], found.limits["macs"]
    widest = max(width for width, cost in costs.items() if cost[0] <= limits[0] and cost[1] <= limits[1])
    assert found.twin == f"{widest}x6"
    assert widest not in subject.widths(0)


def test_every_multiple_of_the_unit_is_a_candidate_where_costs_are_quadratic() -> None:
    subject = HostSubject(timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32), "vit", {})
    filled = with_all_multiples(count(subject), subject).stages[0].costs
    assert list(filled) == list(range(24, 200, 8))
    between = [width for width in filled if width not in subject.widths(0)][::4]
    counted = count(subject, between).stages[0].costs
    assert between
    assert all((filled[width] == counted[width]).all() for width in between)
