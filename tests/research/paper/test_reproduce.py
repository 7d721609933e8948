"""The paper's tables are recomputed, not trusted."""

from __future__ import annotations

from functools import cache

import pytest

from stepsnet.blocks.attention import Attention
from stepsnet.blocks.window import WindowAttention
from stepsnet.errors import UsageError
from stepsnet.models import create_model
from stepsnet.research.paper import TABLES, PaperRow, get_tables, reproduce
from stepsnet.research.paper.reproduce import Comparison


@cache
def compared(name: str) -> list[Comparison]:
    return list(reproduce(TABLES[name]))


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_the_table_matches_the_paper(name: str) -> None:
    for comparison in compared(name):
        assert comparison.holds, (comparison.row.label, comparison.row.printed, comparison.ours)


def exceptions(comparisons: list[Comparison]) -> set[tuple[str, str]]:
    return {
        (c.row.model, column) for c in comparisons for column, verdict in c.verdicts.items() if verdict == "exception"
    }


def test_only_three_known_counts_differ_by_more_than_rounding() -> None:
    counted = [table for table in TABLES.values() if table.result]
    found = set().union(*(exceptions(compared(table.name)) for table in counted))
    assert found == {("deit_deep_d96", "params"), ("steps_deit_deep_d48", "params"), ("steps_deit_deep_d48", "macs")}


@pytest.mark.parametrize(
    ("column", "printed", "ours", "verdict"),
    [
        ("params", "11.7", 11_689_512, "same"),
        ("params", "11.6", 11_689_512, "within 2 %"),
        ("params", "11.2", 11_689_512, "differs"),
        ("blocks", "12", 13, "differs"),
        ("plan", "64x1", "64x2", "differs"),
    ],
)
def test_a_figure_that_is_off_is_called_so(column: str, printed: str, ours: object, verdict: str) -> None:
    from stepsnet.research.paper.reproduce import _verdict

    assert _verdict(PaperRow("a row", "a model", {column: printed}), column, ours) == verdict


def test_the_reverse_design_costs_what_the_forward_one_costs() -> None:
    reverse, forward = compared("table10")
    assert reverse.ours == forward.ours


# Tables 13 and 14, C and H of every bracket.
DEIT_HEADS = {96: 2, 136: 2, 192: 3, 272: 4, 384: 6, 768: 12}
SWIN_HEADS = {96: 3, 128: 4, 192: 6, 256: 8, 272: 8, 360: 12, 384: 12, 512: 16, 544: 16, 720: 24, 768: 24, 1024: 32}


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        *((name, DEIT_HEADS) for name in ("deit_tiny", "deit_small", "deit_base")),
        *((name, DEIT_HEADS) for name in ("steps_deit_tiny", "steps_deit_small", "steps_deit_small_d60")),
        *(
            (name, SWIN_HEADS)
            for name in ("swin_tiny", "swin_base", "steps_swin_tiny", "steps_swin_small", "steps_swin_base")
        ),
    ],
)
def test_heads_are_those_of_tables_13_and_14(name: str, printed: dict[int, int]) -> None:
    heads = {}
    for part in create_model(name, device="meta").modules():
        if isinstance(part, (Attention, WindowAttention)):
            heads[part.proj.out_features] = part.heads
    assert heads
    assert heads == {width: printed[width] for width in heads}


def test_an_unknown_table_gets_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="table5a"):
        get_tables("table5c")


@pytest.mark.parametrize(
    ("name", "found"), [("table2", ["table2a", "table2b"]), ("table5a", ["table5a"]), ("all", list(TABLES))]
)
def test_a_divided_table_is_found_whole_and_in_halves(name: str, found: list[str]) -> None:
    assert [table.name for table in get_tables(name)] == found
