"""The short form of `make chaos`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_run_killed_three_times_equals_an_uninterrupted_one() -> None:
    words = [sys.executable, "-m", "tests.checks.chaos", "--kills", "3", "--iters", "25"]
    found = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "kills survived / tried: 3 / 3" in found.stdout
    assert "equal those of the uninterrupted run: yes" in found.stdout
