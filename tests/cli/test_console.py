"""Progress is drawn on a terminal only, and JSON is strict."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from stepsnet.cli.console import print_json, progress


def shown(*, terminal: bool) -> str:
    """What a bar of ten images writes on its way."""
    written = io.StringIO()
    with progress(
        "training", total=10, unit="images", on=Console(file=written, force_terminal=terminal, width=120)
    ) as bar:
        bar.advance(4, note="loss 2.31")
        bar.advance(6)
    return written.getvalue()


def test_a_terminal_sees_description_share_and_note() -> None:
    text = shown(terminal=True)
    assert [part for part in ("training", "10/10", "loss 2.31") if part not in text] == []


def test_a_terminal_sees_the_rate_in_units() -> None:
    assert "images/s" in shown(terminal=True)


def test_a_file_sees_nothing() -> None:
    assert shown(terminal=False) == ""


def test_progress_without_a_total_is_possible() -> None:
    written = io.StringIO()
    with progress("reading", on=Console(file=written, force_terminal=True, width=120)) as bar:
        bar.advance()
    assert "reading" in written.getvalue()


def test_json_keeps_structure_and_letters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "γ", "rows": [{"macs": 1254, "loss": 0.5, "done": True, "note": None}]}
    print_json(value)
    said = capsys.readouterr().out
    assert json.loads(said) == value
    assert "γ" in said


def test_json_says_null_where_a_number_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": [float("nan"), float("inf"), 1.0], "pair": (float("-inf"), 2)})
    assert json.loads(capsys.readouterr().out) == {"loss": [None, None, 1.0], "pair": [None, 2]}
