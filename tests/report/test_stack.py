"""The stack drawn as text."""

from __future__ import annotations

import subprocess
import sys

from stepsnet.macro.plan import StepPlan
from stepsnet.report.stack import stack_text


def bars(text: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line[:1].isdigit() or line.startswith(" ")]


def test_each_bar_is_as_wide_as_its_step_and_names_its_blocks() -> None:
    text = stack_text([StepPlan.parse("192x12, 272x1, 384x6")], columns=48)
    assert [len(bar) for bar in bars(text)] == [24, 34, 48]
    assert [line.rsplit("  ", 1)[1] for line in text.splitlines()[:3]] == ["12 blocks", "1 block", "6 blocks"]


def test_joining_channels_are_drawn_apart() -> None:
    text = stack_text([StepPlan.parse("8x1, 16x1")], columns=16)
    assert bars(text) == ["█" * 8, "█" * 8 + "▓" * 8]


def test_stages_share_one_scale() -> None:
    text = stack_text([StepPlan.parse("96x2"), StepPlan.parse("192x2")], columns=20)
    assert [len(bar) for bar in bars(text)] == [10, 20]
    assert "stage 2" in text


def test_a_step_without_blocks_is_faint() -> None:
    assert bars(stack_text([StepPlan.parse("4x1, 8x0")], columns=8))[1] == "░" * 8


def test_one_plain_stack_needs_no_legend() -> None:
    assert stack_text([StepPlan.parse("384x12")], columns=4) == "384  ████  12 blocks"


def test_steps_of_nearly_one_width_still_grow() -> None:
    assert [len(bar) for bar in bars(stack_text([StepPlan.parse("100x1, 101x1")], columns=10))] == [10, 11]


def test_drawing_needs_no_torch() -> None:
    code = "import sys, stepsnet.report.stack; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
