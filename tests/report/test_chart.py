"""Charts: where marks are drawn, what the axes show, and the files."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stepsnet.errors import UsageError
from stepsnet.macro.plan import StepPlan
from stepsnet.report import svg
from stepsnet.report.chart import BarChart, Chart, HeatMap, Line, LineChart, StackChart, stack_text
from stepsnet.report.svg import COLORS, SERIES, STEPS, Axis, alike, binned, edges, heat, number


def lines_chart(
    *lines: Line,
    y_range: tuple[float, ...] = (),
    log_x: bool = False,
    log_y: bool = False,
    reference: float | None = None,
    note: str = "",
) -> LineChart:
    return LineChart(title="a < b", note=note, lines=lines, x_label="step", y_label="loss", y_range=y_range,
                     log_x=log_x, log_y=log_y, reference=reference)  # fmt: skip


def bars(
    values: list[float | None], spans: list[tuple[float, float] | None] | None = None, reference: float | None = None
) -> BarChart:
    labels = [f"bar {index}" for index in range(len(values))]
    return BarChart(
        title="bars", labels=labels, values=values, spans=spans or (), reference=reference, x_label="times as fast"
    )


def small_map() -> HeatMap:
    values: list[list[float | None]] = [[1.0, None, 0.5], [0.5, 0.0, 0.2]]
    return HeatMap(title="map", note="join plain", values=values, x=[0, 10, 30], y=[1, 2], x_label="step",
                   y_label="block", scale_label="γ", limits=(0.0, 1.0))  # fmt: skip


def all_kinds() -> list[Chart]:
    lines = Line("<&>", [1, 2, 3], [0.5, None, 0.4], error=[0.1, 0.1, 0.1]), Line("b", [1], [3.0], STEPS, dashed=True)
    plans = [StepPlan.parse("16x4, 32x2"), StepPlan.parse("64x0")]
    return [
        lines_chart(*lines),
        bars([1.5, None], [(1.0, 2.0), None]),
        small_map(),
        StackChart(title="stack", plans=plans),
    ]


def paths(chart: Chart) -> list[list[tuple[float, float]]]:
    """The points of the drawn lines."""
    found = re.findall(r'<path d="M([^"]+)" fill="none" stroke-width="2"', chart.element())
    return [[(float(x), float(y)) for x, y in (pair.split() for pair in path.split("L"))] for path in found]


def texts(chart: Chart) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", chart.element())


def rects(chart: Chart) -> list[dict[str, str]]:
    root = ET.fromstring(chart.element())
    return [rect.attrib for rect in root.iter("{http://www.w3.org/2000/svg}rect")]


@pytest.mark.parametrize("chart", all_kinds(), ids=lambda chart: type(chart).__name__)
def test_a_chart_is_xml_with_any_words_and_loads_nothing(chart: Chart) -> None:
    for text in (chart.element(), chart.document()):
        ET.fromstring(text)
        assert set(re.findall(r"https?://[^\"\s]+", text)) == {"http://www.w3.org/2000/svg"}
        assert not re.search(r"<script|url\(|href| id=", text)


@pytest.mark.parametrize("chart", all_kinds(), ids=lambda chart: type(chart).__name__)
def test_colours_are_classes_with_a_light_and_a_dark_value(chart: Chart) -> None:
    assert set(re.findall(r'class="([^"]+)"', chart.element())) <= COLORS.keys()
    assert "prefers-color-scheme: dark" in chart.document()
    assert "<style" not in chart.element()  # the page has the rules


def test_every_colour_is_legible_on_its_background() -> None:
    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    for mode in (0, 1):
        paper = COLORS["paper"][mode]
        assert all(
            contrast(COLORS[name][mode], paper) >= 4.5 for name in ("ink", "faint", "severe", "warning", "note", "good")
        )
        assert all(contrast(COLORS[name][mode], paper) >= 3.0 for name in SERIES)


def test_title_and_note_are_drawn_in_files_but_not_in_pages() -> None:
    chart = lines_chart(Line("one", [0, 1], [0, 1]), note="two seeds")
    assert "a &lt; b</text>" in chart.document()
    assert ">two seeds<" in chart.document()
    assert "a &lt; b" not in texts(chart)


def test_higher_is_up_and_later_is_right() -> None:
    ((first, last),) = paths(lines_chart(Line("a", [0, 1], [1.0, 2.0])))
    assert last[0] > first[0]
    assert last[1] < first[1]


def test_values_that_are_not_finite_leave_a_gap() -> None:
    assert [len(path) for path in paths(lines_chart(Line("a", range(5), [1.0, 2.0, math.nan, 2.0, None])))] == [2]
    assert lines_chart(Line("a", range(3), [1.0, None, 2.0])).element().count('r="3"') == 2


def test_a_value_without_logarithm_leaves_a_gap() -> None:
    assert [len(path) for path in paths(lines_chart(Line("", [1, 10, 100], [0.0, 1.0, 2.0]), log_y=True))] == [2]
    assert [len(path) for path in paths(lines_chart(Line("", [0, 10, 100], [1.0, 1.0, 2.0]), log_x=True))] == [2]


def test_powers_are_straight_on_logarithmic_axes() -> None:
    ((first, middle, last),) = paths(
        lines_chart(Line("", [1, 10, 100], [1.0, 100.0, 10_000.0]), log_x=True, log_y=True)
    )
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.2)
    assert middle[1] == pytest.approx((first[1] + last[1]) / 2, abs=0.2)


def test_without_a_point_there_is_no_chart() -> None:
    assert lines_chart().element() == lines_chart(Line("a", [1], [None])).element() == bars([None]).element() == ""


def test_a_constant_has_axes() -> None:
    ET.fromstring(lines_chart(Line("a", [0, 1], [1000.0, 1000.0])).element())
    ET.fromstring(lines_chart(Line("a", [5, 5], [0.0, 0.0])).element())


@pytest.mark.parametrize("value", [1e-3, -0.02, 3.0])
def test_a_constant_is_not_drawn_as_zero(value: float) -> None:
    axes = lines_chart(Line("a", [0, 1], [value, value])).axes()
    assert axes
    assert abs(axes[1](value) - axes[1](0.0)) > 50  # pixels


def test_the_axis_shows_the_range_asked_for() -> None:
    axes = lines_chart(Line("a", [0, 1], [0.8, 0.9]), y_range=(0.0, 1.0)).axes()
    assert axes
    assert (axes[1].low, axes[1].high) == (0.0, 1.0)


def test_tick_labels_do_not_overlap_the_y_label() -> None:
    text = lines_chart(Line("a", [0, 1], [1e5, 9e5])).element()
    (label,) = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>loss<', text)
    ticks = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*text-anchor="end">([^<]+)<', text)
    assert "800,000" in [word for _, _, word in ticks]
    assert all(float(y) > float(label[1]) + 10 for _, y, _ in ticks)
    assert all(float(x) - 0.56 * 13 * len(word) >= 0 for x, _, word in ticks)


def test_errors_are_whiskers_of_their_length_and_part_of_the_range() -> None:
    chart = lines_chart(Line("a", [0, 1], [1.0, 2.0], error=[0.0, 0.5]))
    axes = chart.axes()
    assert axes
    assert axes[1].high >= 2.5
    ((low, high),) = re.findall(r'd="M[\d.]+ ([\d.]+)h8m-4 0V([\d.]+)m-4 0h8"', chart.element())
    assert float(low) == pytest.approx(axes[1](1.5), abs=0.1)
    assert float(high) == pytest.approx(axes[1](2.5), abs=0.1)
    assert "a: 1, 2 ± 0.5" in chart.element()


def test_errors_of_a_long_line_are_a_band() -> None:
    assert 'fill-opacity="0.2"' in lines_chart(Line("a", range(100), [1.0] * 100, error=[0.1] * 100)).element()


def test_lines_without_a_colour_take_the_series_in_turn() -> None:
    chart = lines_chart(Line("", [0, 1], [0, 1]), Line("", [0, 1], [1, 2]))
    assert re.findall(r'<g class="(c\d)"', chart.element()) == list(SERIES[:2])


def test_tooltips_name_the_points() -> None:
    assert "<title>deit_tiny: 1, 2</title>" in lines_chart(Line("deit", [1], [2.0], names=["deit_tiny"])).element()


def test_points_can_stand_without_a_line() -> None:
    assert paths(lines_chart(Line("a", [0, 1], [0.0, 1.0], joined=False))) == []


def test_a_reference_is_a_dashed_line_inside_the_range() -> None:
    chart = lines_chart(Line("a", [0, 1], [2.0, 3.0]), reference=1.0)
    axes = chart.axes()
    assert axes
    assert axes[1].low <= 1.0
    assert "stroke-dasharray" in chart.element()


def test_bars_have_their_values_with_equal_decimals() -> None:
    assert [word for word in texts(bars([1.5, 2.0])) if "." in word][:2] == ["1.50", "2.00"]
    assert alike([0.7383, -9.12e-06, float("nan"), None]) == ["0.738", "0.000", "", ""]


@pytest.mark.parametrize("label", ["matched", "WWWWWW", "a long label of a network, wrapped into two lines"])
def test_labels_of_bars_begin_inside_the_chart(label: str) -> None:
    chart = BarChart(title="bars", labels=[label], values=[1.0], x_label="loss")
    found = re.findall(r'<text class="ink" x="([\d.]+)"[^>]*text-anchor="end"[^>]*>([^<]+)<', chart.element())
    starts = {words: float(x) - svg.width_of(words) for x, words in found if words in label}
    assert starts
    assert all(start >= 0 for start in starts.values())


def test_texts_are_not_taken_for_narrower_than_they_are() -> None:
    """Widths in DejaVu Sans, a wide font, at 13 pixels."""
    assert svg.width_of("matched") >= 57.4
    assert svg.width_of("WWW") >= 38.5
    assert svg.width_of("filter") >= 32.0


def test_a_value_just_above_a_tick_does_not_add_another() -> None:
    chart = lines_chart(Line("γ", [1, 2], [1.0003, 0.9]), y_range=(0.0, 1.0))
    axes = chart.axes()
    assert axes is not None
    assert axes[1].high == 1.0


def test_whiskers_end_at_the_quartiles() -> None:
    chart = bars([1.0, 3.0], [(0.8, 1.7), (2.9, 3.1)])
    unit = (float(rects(chart)[1]["width"]) - float(rects(chart)[0]["width"])) / 2
    start = float(rects(chart)[0]["x"])
    found = [
        (float(a), float(b)) for a, b in re.findall(r'd="M([\d.]+) [\d.]+v10m0 -5H([\d.]+)m0 -5v10"', chart.element())
    ]
    assert found[0] == pytest.approx((start + 0.8 * unit, start + 1.7 * unit), abs=0.2)
    assert "bar 0: 1.00, from 0.8 to 1.7" in chart.element()


def test_a_chart_of_ratios_has_a_line_at_one() -> None:
    chart = bars([1.5, 1.2], reference=1.0)
    (x,) = re.findall(r'x1="([\d.]+)"[^>]*stroke-dasharray', chart.element())
    bar = rects(chart)[0]
    assert float(x) == pytest.approx(float(bar["x"]) + float(bar["width"]) / 1.5, abs=0.2)


def test_negative_bars_grow_to_the_left() -> None:
    up, down = rects(bars([1.0, -1.0]))
    assert float(down["x"]) + float(down["width"]) == pytest.approx(float(up["x"]), abs=0.1)


def test_a_heat_map_begins_at_its_first_and_ends_at_its_last_step() -> None:
    assert edges([0, 10, 30], outside=False) == [0, 5, 20, 30]
    assert edges([1, 2], outside=True) == [0.5, 1.5, 2.5]
    assert edges([7], outside=False) == [6.5, 7.5]
    steps = [word for word in texts(small_map()) if word.isdigit()]
    assert "0" in steps
    assert not any(word.startswith("-") for word in texts(small_map()))


def test_a_heat_map_has_one_colour_per_level_and_none_for_a_missing_value() -> None:
    assert heat(0.0) == "#440154"
    assert heat(1.0) == "#fde725"
    cells = re.findall(r'<path d="([^"]+)" fill="#\w+" shape-rendering', small_map().element())
    assert sum(cell.count("z") for cell in cells) == 5


def test_a_large_heat_map_is_averaged() -> None:
    values = [[1.0] * 1000] * 300
    chart = HeatMap(
        title="", values=values, x=range(1000), y=range(300), x_label="", y_label="", scale_label="", limits=(0.0, 1.0)
    )
    assert len(chart.element()) < 300_000


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3, 97, [20, 40, 60, 80])]
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert Axis(low, high).ticks(5) == pytest.approx(expected)


def test_ticks_of_whole_numbers_are_whole() -> None:
    assert Axis(1, 4, whole=True).ticks(8) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.0, 5.0, [1, 1.5, 2, 3, 4, 5]), (1.0, 100.0, [1, 2, 5, 10, 20, 50, 100]), (1e-6, 1.0, [1e-6, 1e-5, 1e-4])],
)
def test_logarithmic_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert Axis(low, high, log=True).ticks(5)[: len(expected)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.25, "0.25"), (12.0, "12"), (3000, "3,000"), (2.5e6, "2.5 M"), (3e9, "3e+09"), (2e-6, "2e-06"), (0, "0"),
     (-1.5, "-1.5")],
)  # fmt: skip
def test_numbers_are_short(value: float, expected: str) -> None:
    assert number(value) == expected


def test_long_curves_become_means() -> None:
    x, y = binned(range(1, 1001), [float(v) for v in range(1, 1001)], bins=10)
    assert len(x) == 10
    assert y[0] == pytest.approx(50.5)
    assert x[0] == pytest.approx(50.5)


def test_a_mean_of_nothing_is_a_gap() -> None:
    assert binned([1, 2], [None, math.inf], bins=1) == ([1.5], [None])


def test_only_svg_files_are_written_and_the_same_chart_gives_the_same_file(tmp_path: Path) -> None:
    files = [small_map().save(tmp_path / f"{name}.svg").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UsageError, match=r"must end in \.svg"):
        small_map().save(tmp_path / "map.gif")
    with pytest.raises(UsageError, match="no folder"):
        small_map().save(tmp_path / "nowhere" / "map.svg")


def test_the_stack_has_bars_as_wide_as_its_steps() -> None:
    chart = StackChart(title="", plans=[StepPlan.parse("16x4, 32x2"), StepPlan.parse("64x0")])
    widths = [float(rect["width"]) for rect in rects(chart)]
    lengths = [a + b for a, b in zip(widths[::2], widths[1::2], strict=True)]
    assert lengths == pytest.approx([lengths[2] / 4, lengths[2] / 2, lengths[2]], abs=0.2)


def text_bars(text: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line[:1].isdigit() or line.startswith(" ")]


def test_each_text_bar_is_as_wide_as_its_step_and_names_its_blocks() -> None:
    text = stack_text([StepPlan.parse("192x12, 272x1, 384x6")], columns=48)
    assert [len(bar) for bar in text_bars(text)] == [24, 34, 48]
    assert [line.rsplit("  ", 1)[1] for line in text.splitlines()[:3]] == ["12 blocks", "1 block", "6 blocks"]


def test_joining_channels_are_drawn_differently() -> None:
    text = stack_text([StepPlan.parse("8x1, 16x1")], columns=16)
    assert text_bars(text) == ["█" * 8, "█" * 8 + "▓" * 8]


def test_the_reverse_stack_goes_from_wide_to_narrow_and_has_no_joins() -> None:
    text = stack_text([StepPlan.parse("8x2, 16x1")], columns=16, reverse=True)
    assert text_bars(text) == ["█" * 8 + "▓" * 8, "█" * 8]
    assert [line.rsplit("  ", 1)[1] for line in text.splitlines()[:2]] == ["1 block", "2 blocks"]
    assert "next step" in text
    assert "join" not in text
    chart = StackChart(title="", plans=[StepPlan.parse("8x2, 16x1")], reverse=True)
    dark, light, nothing, last = (float(rect["width"]) for rect in rects(chart))
    assert (dark, nothing) == (last, 0.0)
    assert light == pytest.approx(dark, abs=0.2)


def test_stages_share_one_scale() -> None:
    text = stack_text([StepPlan.parse("96x2"), StepPlan.parse("192x2")], columns=20)
    assert [len(bar) for bar in text_bars(text)] == [10, 20]
    assert "stage 2" in text


def test_a_step_without_blocks_is_faint() -> None:
    assert text_bars(stack_text([StepPlan.parse("4x1, 8x0")], columns=8))[1] == "░" * 8


def test_a_stack_of_one_step_needs_no_legend() -> None:
    assert stack_text([StepPlan.parse("384x12")], columns=4) == "384  ████  12 blocks"


def test_steps_of_nearly_equal_width_still_grow() -> None:
    assert [len(bar) for bar in text_bars(stack_text([StepPlan.parse("100x1, 101x1")], columns=10))] == [10, 11]


def test_charts_and_pages_need_no_torch() -> None:
    names = ("analysis", "bench", "chart", "html", "run", "table")
    code = f"import sys, {', '.join(f'stepsnet.report.{name}' for name in names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
