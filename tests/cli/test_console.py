"""Bars on a terminal, lines of progress elsewhere, and strict JSON."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from stepsnet.cli import console
from stepsnet.cli.console import print_json, progress
from stepsnet.cli.main import main


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


class Waiting:
    """A command without progress of its own."""

    SUMMARY = DESCRIPTION = "waits"

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait

    def add_arguments(self, parser: object) -> None:
        """None."""

    def run(self, args: object) -> int:
        self.wait()
        return 0


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of progress after a moment."""
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.02)


def wait_for(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Standard error until `words` are there."""
    said, end = "", time.monotonic() + 300
    while words not in said and time.monotonic() < end:
        time.sleep(0.01)
        said += capsys.readouterr().err
    return said


@pytest.mark.usefixtures("_soon")
def test_no_command_is_silent_for_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        assert wait_for("passed", capsys).startswith("stepsnet plan 0:0")

    monkeypatch.setattr("stepsnet.cli.main.load", lambda _: Waiting(wait))
    assert main(["plan"]) == 0


@pytest.mark.usefixtures("_soon")
def test_of_two_bars_the_newest_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("outer"), console.progress("inner"):
        assert wait_for("passed", capsys).startswith("inner 0:0")


@pytest.mark.usefixtures("_soon")
def test_a_text_printed_in_pieces_is_not_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = []

    def print_pieces() -> None:
        with console.no_lines():
            capsys.readouterr()  # on a busy machine a line may come before
            time.sleep(0.2)
            printed.append(capsys.readouterr().err)

    monkeypatch.setattr("stepsnet.cli.main.load", lambda _: Waiting(print_pieces))
    assert main(["generate"]) == 0
    assert printed == [""]
