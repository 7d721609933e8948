"""Plans for models of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import timm
from torch import nn

import stepsnet
from stepsnet.errors import UsageError
from stepsnet.planner.search import StageCosts
from stepsnet.planner.subject import Counted, count, with_all_multiples
from stepsnet.surgery.planning import HostSubject
from tests.surgery import tiny


@pytest.mark.parametrize("make", [lambda: timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32), tiny.gpt2])
def test_the_predicted_cost_is_that_of_the_stepified_model(make: Callable[[], Any]) -> None:
    """GPT-2 has one weight for embedding and head."""
    found = stepsnet.plan(make(), blocks=8)
    report = stepsnet.surgery_report(stepsnet.stepify(make(), found.plan))
    assert (report.params_after, report.macs_after) == (found.chosen.params, found.chosen.macs)
    assert (report.params_before, report.macs_before) == (found.plain.params, found.plain.macs)


def test_the_model_is_not_changed() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32)
    before = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    stepsnet.plan(model)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == before


class EveryMultiple(HostSubject):
    """Counts every width that the planner otherwise derives."""

    def widths(self, stage: int) -> Sequence[int]:
        return range(120, self.plain[stage].width + 1, 8)


def small_vit() -> nn.Module:
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32)
    return model


def test_every_multiple_of_the_unit_is_a_candidate_where_costs_are_quadratic() -> None:
    subject = HostSubject(small_vit(), "vit", {})
    filled = with_all_multiples(count(subject), subject).stages[0].costs
    assert list(filled) == list(range(24, 200, 8))
    counted = count(EveryMultiple(small_vit(), "vit", {})).stages[0].costs
    assert counted.keys() - set(subject.widths(0))
    assert all((filled[width] == cost).all() for width, cost in counted.items())


def test_the_twin_is_the_widest_that_fits_also_between_the_widths_of_the_search() -> None:
    found = stepsnet.plan(small_vit(), blocks=6)
    counted = count(EveryMultiple(small_vit(), "vit", {}))
    params, macs, _ = counted.fixed
    costs = {width: (params + 6 * cost[0], macs + 6 * cost[1]) for width, cost in counted.stages[0].costs.items()}
    limits = found.limits["params"], found.limits["macs"]
    widest = max(width for width, cost in costs.items() if cost[0] <= limits[0] and cost[1] <= limits[1])
    assert found.twin == f"{widest}x6"
    assert widest not in HostSubject(small_vit(), "vit", {}).widths(0)


def test_costs_that_are_no_quadratic_are_left_alone() -> None:
    costs = {width: np.array([float(width**3), 1.0, 0.0]) for width in (8, 32, 64, 128)}
    counted = Counted((StageCosts(128, 1, costs),), np.zeros(3))
    assert with_all_multiples(counted, HostSubject(small_vit(), "vit", {})).stages[0].costs == costs


def test_a_model_of_this_package_is_planned_by_its_name() -> None:
    with pytest.raises(UsageError, match="plan its name"):
        stepsnet.plan(stepsnet.create_model("test_deit"))
