"""Tables at every width: no number is cut, no name is broken, and columns that do not fit are named."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from stepsnet.report.table import Column, Table, cell_width

WIDTHS = (60, 80, 120, 200)

COUNTS = Table(
    (Column("model", "name"), Column("plan", "text", 3), Column("layers", priority=1), Column("parameters", priority=1),
     Column("MACs", priority=2), Column("throughput, images a second", priority=4), Column("top-1 %", priority=1)),
    [
        ["steps_deit_deep_d96", "34x24, 48x12, 68x12, 96x12, 136x12, 192x12, 272x12", "245 = 245", "22.09 M = 22.1 M",
         "4.73 G = 4.7 G", "1,204.25", "81.0"],
        ["deit_small", "384x12", "122 = 122", "22.05 M = 22.1 M", "4.61 G = 4.6 G", "1,312.00", "79.9"],
    ],
)  # fmt: skip
"""Like Table 5b: 150 columns wide if nothing wraps."""


@pytest.mark.parametrize("width", WIDTHS)
def test_every_line_fits_the_width(width: int) -> None:
    assert max(map(cell_width, COUNTS.text(width).splitlines())) <= width


@pytest.mark.parametrize("width", range(30, 201))
def test_a_shown_number_or_name_is_whole_at_any_width(width: int) -> None:
    text = COUNTS.text(width)
    left_out = " ".join(text.split()).partition("Left out to fit")[2]
    for row in COUNTS.rows:
        line = next(line for line in text.splitlines() if line.startswith(row[0]))
        cells = re.split(r"\s{2,}", line)
        assert all(cell in row or cell in row[1] for cell in cells)
        assert "plan" in left_out or all(step in text for step in row[1].split())


def test_columns_that_do_not_fit_are_left_out_by_priority_and_named() -> None:
    assert "Left out" not in COUNTS.text(200)
    assert "Left out" not in COUNTS.text(120)
    assert COUNTS.text(80).splitlines()[-1] == "Left out to fit 80 columns: plan; throughput, images a second."
    assert COUNTS.text(60).splitlines()[-2:] == [
        "Left out to fit 60 columns: plan; MACs; throughput, images a",
        "second.",
    ]


def test_of_equal_priority_the_rightmost_column_goes_first() -> None:
    table = Table(("a", "b", "c"), [["name", "1" * 10, "2" * 10]])
    assert table.text(20).splitlines()[-2:] == ["Left out to fit 20", "columns: c."]
    assert "1" * 10 in table.text(20)


def test_titles_wrap_before_texts_and_texts_before_columns_go() -> None:
    table = Table(
        (Column("m", "name"), Column("a long title"), Column("remark", "text")), [["x", "1", "one two three four five"]]
    )
    assert table.text().splitlines()[2] == "x             1  one two three four five"
    assert table.text(34).splitlines() == [
        "m  a long  remark", "    title", "─" * 34, "x       1  one two three four five"
    ]  # fmt: skip
    assert table.text(28).splitlines()[-2:] == ["x      1  one two three four", "          five"]


def test_names_and_priority_0_are_kept_even_if_too_wide() -> None:
    table = Table(
        (Column("model", "name"), Column("loss", priority=0), Column("time")),
        [["a_very_long_model_name", "3.14159", "2 s"]],
    )
    lines = table.text(20).splitlines()
    assert lines[2] == "a_very_long_model_name  3.14159"
    assert " ".join(lines[3:]) == "Left out to fit 20 columns: time."


def test_numbers_are_right_aligned_and_text_left_aligned() -> None:
    table = Table(("network", "loss", Column("remark", "text")), [["a", "10.25", "x"], ["bb", "9.5", "y"]])
    assert table.text().splitlines()[2:] == ["a        10.25  x", "bb         9.5  y"]


def test_combining_and_wide_characters_are_counted_as_shown() -> None:
    assert cell_width("ẑ") == cell_width("z\u0302") == 1
    assert cell_width("漢") == 2
    table = Table(("x", "y"), [["z\u0302", "1"], ["z", "2"]])
    assert [cell_width(line) for line in table.text().splitlines()[2:]] == [4, 4]


def test_titles_can_be_bold() -> None:
    table = Table(("x",), [["1"]], title="All")
    assert table.text(bold=True).splitlines()[:2] == ["\033[1mAll\033[0m", "\033[1mx\033[0m"]


def test_markdown_escapes_bars_and_aligns_numbers() -> None:
    assert Table(("x|y", "n"), [["|z|", "1"]]).markdown() == "| x\\|y | n |\n| --- | ---: |\n| \\|z\\| | 1 |"


def test_html_is_escaped_and_scrolls() -> None:
    page = Table(("a<b", "n"), [["<x>", "1"]], colors=["c1"]).html()
    assert page.startswith('<div class="scroll"><table>')
    assert '<td class="name"><span class="swatch c1"></span>&lt;x&gt;</td>' in page
    assert '<td class="number">1</td>' in page
    assert Table(("a",), []).html() == ""


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        Table(("a", "b"), [["1"]])


def test_the_table_needs_neither_torch_nor_rich() -> None:
    code = "import sys, stepsnet.report.table; sys.exit(not {'torch', 'rich'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
