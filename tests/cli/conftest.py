"""What commands print depends neither on the terminal of the tests nor on how busy the machine is."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _steady_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("stepsnet.cli.console.SECONDS_BETWEEN_LINES", 1000.0)
