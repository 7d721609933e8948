"""The charts: what is drawn, and the files they become."""

from __future__ import annotations

import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from stepsnet.errors import UsageError
from stepsnet.report.figures import Line, bar_chart, figure_svg, heat_map, line_chart, save_figure, scatter_chart
from stepsnet.report.palette import SERIES, STEPS


def two_lines() -> Figure:
    lines = [Line("one", [1, 2, 3], [0.5, None, math.nan]), Line("other", [1, 2, 3], [3, 2, 1], STEPS, error=[0.1, 0.1, 0.1], dashed=True)]
    return line_chart(lines, title="A title", x_label="block", y_label="γ", note="said below the title")


def small_map() -> Figure:
    return heat_map([[1.0, None], [0.5, 0.0]], x=[0, 10], y=[1, 2], title="map", x_label="step", y_label="block", bar_label="γ")


def test_the_words_of_a_chart_are_in_its_picture() -> None:
    svg = figure_svg(two_lines())
    assert all(f">{word}<" in svg for word in ("A title", "block", "γ", "one", "other", "said below the title"))


def test_lines_without_a_colour_take_the_series_in_turn() -> None:
    chart = line_chart([Line("", [0, 1], [0, 1]) for _ in range(2)], title="", x_label="", y_label="")
    assert [line.get_color() for line in chart.axes[0].get_lines()] == list(SERIES[:2])


def test_what_is_missing_leaves_a_gap() -> None:
    y = two_lines().axes[0].get_lines()[0].get_ydata()
    assert [math.isnan(value) for value in y] == [False, True, True]  # type: ignore[union-attr, arg-type]


def test_what_has_no_logarithm_leaves_a_gap() -> None:
    chart = line_chart([Line("", [1, 10], [0.0, 1.0])], title="", x_label="", y_label="", log_x=True, log_y=True)
    assert chart.axes[0].get_xscale() == chart.axes[0].get_yscale() == "log"
    assert math.isnan(chart.axes[0].get_lines()[0].get_ydata()[0])  # type: ignore[index, arg-type]


def test_a_frame_reaches_down_as_far_as_asked() -> None:
    chart = line_chart([Line("", [0, 1], [0.8, 0.9])], title="", x_label="", y_label="", y_from=0.0)
    assert chart.axes[0].get_ylim()[0] == 0.0


def test_points_have_their_words() -> None:
    chart = scatter_chart([Line("", [1, 2], [1, 2])], title="", x_label="", y_label="", annotate=[["first", ""]])
    assert [text.get_text() for text in chart.axes[0].texts] == ["first"]


def test_bars_have_their_values() -> None:
    chart = bar_chart(["a", "b"], [1.5, 2.0], errors=[0.1, 0.2], title="", y_label="")
    assert [text.get_text() for text in chart.axes[0].texts] == ["1.50", "2.00"]


def test_bars_have_decimals_alike() -> None:
    chart = bar_chart(["a", "b", "c"], [0.7383, -9.12e-06, float("nan")], title="", y_label="")
    assert [text.get_text() for text in chart.axes[0].texts] == ["0.738", "0.000", ""]


def test_cells_meet_halfway_between_their_centres() -> None:
    chart = heat_map([[1, 2, 3]], x=[0, 10, 30], y=[1], title="", x_label="", y_label="", bar_label="")
    assert chart.axes[0].get_xlim() == (-5, 40)
    assert chart.axes[0].get_ylim() == (0.5, 1.5)


def test_a_map_keeps_the_limits_it_is_given() -> None:
    chart = heat_map([[0.2, 0.3]], x=[0, 1], y=[1], title="", x_label="", y_label="", bar_label="", limits=(0.0, 1.0))
    assert chart.axes[0].collections[0].get_clim() == (0.0, 1.0)


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")])
def test_the_name_says_what_is_written(tmp_path: Path, suffix: str, start: bytes) -> None:
    save_figure(small_map(), tmp_path / f"map{suffix}")
    assert (tmp_path / f"map{suffix}").read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_figure(two_lines(), tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_other_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        save_figure(small_map(), tmp_path / "map.gif")
    with pytest.raises(UsageError, match="no folder"):
        save_figure(small_map(), tmp_path / "nowhere" / "map.png")


@pytest.mark.parametrize("figure", [two_lines, small_map])
def test_a_figure_in_a_page_loads_nothing_and_names_nothing_twice(figure: type[Figure]) -> None:
    svg = figure_svg(figure())
    assert set(re.findall(r"https?://[^\"\s]+", svg)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<style|<metadata|<g id=|xlink", svg)
    HTMLParser().feed(svg)
    assert svg.startswith("<svg")
    assert svg.endswith("</svg>")


def test_without_matplotlib_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"stepsnet\[plots\]"):
        small_map()
