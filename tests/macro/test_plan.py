"""Plans: read, written, refused, and derived from a plain stack as in the paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stepsnet.errors import UsageError
from stepsnet.macro import ReverseStepsNet, StepPlan, StepsNet
from stepsnet.models import create_model, deit, language, swin

plans = st.sets(st.integers(1, 5000), min_size=1, max_size=8).flatmap(
    lambda widths: st.builds(
        StepPlan,
        st.just(tuple(sorted(widths))),
        st.lists(st.integers(0, 99), min_size=len(widths), max_size=len(widths)).map(tuple),
    )
)


@given(plans)
def test_plans_round_trip_through_text(plan: StepPlan) -> None:
    assert StepPlan.parse(str(plan)) == plan


@given(plans)
def test_slices_add_up_to_widths(plan: StepPlan) -> None:
    assert [sum(plan.slices[: index + 1]) for index in range(len(plan))] == list(plan.widths)


def test_properties_of_a_plan() -> None:
    plan = StepPlan.parse("192x12, 272x6, 384x6")
    assert (plan.widths, plan.depths, plan.blocks, plan.width, plan.slices) == (
        (192, 272, 384),
        (12, 6, 6),
        24,
        384,
        (192, 80, 112),
    )


@pytest.mark.parametrize("text", ["192x12,272x6,384x6", " 192 x 12 , 272×6, 384x6 "])
def test_plans_may_have_spaces_and_multiplication_signs(text: str) -> None:
    assert str(StepPlan.parse(text)) == "192x12, 272x6, 384x6"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("384x6, 272x6", "'384x6, 272x6' goes from width 384 to 272: every step must be wider"),
        ("272x6, 272x6", "goes from width 272 to 272"),
        ("192x12; 272x6", "'192x12; 272x6' in the plan .* is not WIDTHxBLOCKS; a plan looks like"),
        ("192x12,", "'' in the plan '192x12,' is not WIDTHxBLOCKS"),
        ("192x-1", "'192x-1' in the plan"),
        ("0x3, 4x1", "needs positive widths"),
        ("", "is not WIDTHxBLOCKS"),
    ],
)
def test_invalid_plans_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        StepPlan.parse(text)


WIDE_NARROW_WIDE = "32x4, 16x8, 32x4"


def test_every_macro_says_which_order_of_widths_it_takes() -> None:
    plan = StepPlan.parse(WIDE_NARROW_WIDE, any_order=True)
    assert (plan.blocks, plan.width) == (16, 32)
    with pytest.raises(UsageError, match="must be positive and grow from narrow to wide"):
        StepsNet.from_blocks(lambda width, index: nn.Identity(), plan)
    with pytest.raises(UsageError, match="must be positive and shrink from wide to narrow"):
        ReverseStepsNet.from_blocks(lambda width, index: nn.Identity(), plan)


@pytest.mark.parametrize("macro", ["steps", "reverse"])
def test_registered_models_name_the_order_they_take(macro: str) -> None:
    why = "from width 32 to 16: every step must be wider .*macro='reverse'; only stepify takes any order"
    with pytest.raises(UsageError, match=why):
        create_model("test_deit", plan=WIDE_NARROW_WIDE, macro=macro)


def test_reverse_takes_the_plan_of_steps_from_its_end() -> None:
    def widths(macro: str) -> tuple[int, ...]:
        net = create_model("test_deit", plan="16x2, 32x1", macro=macro)
        return next(part.widths for part in net.modules() if isinstance(part, (StepsNet, ReverseStepsNet)))

    assert (widths("steps"), widths("reverse")) == ((16, 32), (32, 16))


def test_a_plan_needs_as_many_depths_as_widths() -> None:
    with pytest.raises(UsageError, match=r"one depth per width, got \(4, 8\) and \(1,\)"):
        StepPlan((4, 8), (1,))


# (width, depth, steps) of a plain stack → the plan that Tables 4, 8 and 12-14 print for it.
PRINTED: list[tuple[Callable[[float], int], tuple[int, int, int], str]] = [
    (deit.round_width, (384, 12, 1), "384x12"),
    (deit.round_width, (384, 12, 2), "272x12, 384x6"),
    (deit.round_width, (384, 12, 3), "192x12, 272x6, 384x6"),
    (deit.round_width, (384, 12, 4), "136x12, 192x6, 272x6, 384x6"),
    (deit.round_width, (384, 12, 5), "96x12, 136x6, 192x6, 272x6, 384x6"),
    (deit.round_width, (192, 12, 3), "96x12, 136x6, 192x6"),
    (deit.round_width, (768, 12, 3), "384x12, 544x6, 768x6"),
    (int, (256, 1, 5), "64x2, 90x1, 128x1, 181x1, 256x0"),
    (int, (512, 1, 7), "64x2, 90x1, 128x1, 181x1, 256x1, 362x1, 512x0"),
    (int, (256, 5, 5), "64x6, 90x3, 128x3, 181x3, 256x2"),
    (int, (512, 2, 7), "64x2, 90x1, 128x1, 181x1, 256x1, 362x1, 512x1"),
    (swin.round_width, (96, 2, 2), "68x2, 96x1"),
    (swin.round_width, (192, 2, 2), "136x2, 192x1"),
    (swin.round_width, (384, 6, 3), "192x6, 272x3, 384x3"),
    (swin.round_width, (544, 4, 4), "192x4, 272x2, 384x2, 544x2"),
    (swin.round_width, (720, 4, 4), "256x4, 360x2, 512x2, 720x2"),
    (language.round_width, (384, 6, 3), "192x6, 272x3, 384x3"),
    (language.round_width, (512, 6, 3), "256x6, 368x3, 512x3"),
    (language.round_width, (512, 12, 3), "256x12, 368x6, 512x6"),
]


@pytest.mark.parametrize(("round_width", "stack", "printed"), PRINTED)
def test_default_plans_are_those_of_the_paper(
    round_width: Callable[[float], int], stack: tuple[int, int, int], printed: str
) -> None:
    assert str(StepPlan.default(*stack, round_width)) == printed


@given(st.integers(64, 1024), st.integers(1, 40), st.integers(1, 6))
def test_the_default_plan_keeps_width_and_computation_of_the_stack(width: int, depth: int, steps: int) -> None:
    plan = StepPlan.default(width, depth, steps)
    assert plan.width == width
    assert len(plan) == steps
    cost = sum(
        step_depth / 2 ** (steps - 1 - index) for index, step_depth in enumerate(plan.depths)
    )  # in blocks of the full width
    assert cost == depth


def test_a_default_plan_of_no_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="the number of steps is at least 1"):
        StepPlan.default(384, 12, 0)


def test_a_default_plan_of_too_many_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="9 steps, each √2 narrower than the next, do not fit into width 8"):
        StepPlan.default(8, 2, 9)
    with pytest.raises(UsageError, match="1000000 steps, each √2 narrower than the next, do not fit into width 384"):
        StepPlan.default(384, 12, 1_000_000)
