"""Charts: where points land, what the axes say."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from stepsnet.macro.plan import StepPlan
from stepsnet.report.stack import stack_svg
from stepsnet.report.svg import Line, binned, line_chart, number, ticks


def chart(*lines: Line, y_range: tuple[float, float] | None = None) -> str:
    return line_chart(lines, title="a < b", x_label="step", y_label="loss", y_range=y_range)


def points(text: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'points="([^"]+)"', text)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in polyline.split())] for polyline in found]


def test_higher_is_up_and_later_is_right() -> None:
    ((first, last),) = points(chart(Line("a", [0, 1], [1.0, 2.0], "#000")))
    assert last[0] > first[0]
    assert last[1] < first[1]


def test_it_is_xml_whatever_the_words() -> None:
    ET.fromstring(chart(Line("<&>", [0, 1], [1.0, 2.0], "#000"), Line("b", [0], [3.0], "#111", dashed=True)))


def test_what_is_not_finite_leaves_a_gap() -> None:
    assert len(points(chart(Line("a", range(5), [1.0, 2.0, math.nan, 2.0, None], "#000")))) == 1
    assert chart(Line("a", range(3), [1.0, None, 2.0], "#000")).count("<circle") == 2


def test_nothing_to_draw_is_nothing() -> None:
    assert chart() == ""
    assert chart(Line("a", [1], [None], "#000")) == ""


def test_a_constant_has_a_frame() -> None:
    ET.fromstring(chart(Line("a", [0, 1], [1000.0, 1000.0], "#000")))
    ET.fromstring(chart(Line("a", [5, 5], [0.0, 0.0], "#000")))


def test_the_frame_shows_the_range_asked_for() -> None:
    assert ">0</text>" in chart(Line("a", [0, 1], [0.8, 0.9], "#000"), y_range=(0.0, 1.0))


@pytest.mark.parametrize(("low", "high", "expected"), [(0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3, 97, [20, 40, 60, 80])])
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("value", "expected"), [(0.25, "0.25"), (12.0, "12"), (3000, "3,000"), (2e-6, "2e-06"), (0, "0"), (-1.5, "-1.5")])
def test_numbers_are_short(value: float, expected: str) -> None:
    assert number(value) == expected


def test_long_curves_become_means() -> None:
    x, y = binned(range(1, 1001), [float(v) for v in range(1, 1001)], bins=10)
    assert len(x) == 10
    assert y[0] == pytest.approx(50.5)
    assert x[0] == pytest.approx(50.5)


def test_a_mean_of_nothing_is_a_gap() -> None:
    assert binned([1, 2], [None, math.inf], bins=1) == ([1.5], [None])


def test_the_stack_has_bars_as_wide_as_its_steps() -> None:
    rects = ET.fromstring(stack_svg([StepPlan.parse("16x4, 32x2"), StepPlan.parse("64x0")])).iter("{http://www.w3.org/2000/svg}rect")
    widths = [float(rect.attrib["width"]) for rect in rects]
    bars = [a + b for a, b in zip(widths[::2], widths[1::2], strict=True)]
    assert bars == pytest.approx([bars[2] / 4, bars[2] / 2, bars[2]], abs=0.2)
