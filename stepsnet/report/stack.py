"""The stack as a picture: one bar per step, as wide as the step, labelled with its blocks. As text here, as SVG in figures.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing the plan at run time would bring torch with it
    from stepsnet.macro.plan import StepPlan

GOES_ON, JOINS, PASSES = "█", "▓", "░"
LEGEND = f"{GOES_ON} channels of the step before   {JOINS} channels that join here"


def stack_text(plans: Sequence[StepPlan], columns: int = 64) -> str:
    """Draw one plan per stage, top to bottom in the order of execution; the widest step of all takes `columns` characters.

    In each bar the channels that come from the step before are darker than those that join; a step without blocks, whose channels
    pass through untouched, is faint.
    """
    widest = max(plan.width for plan in plans)
    digits = len(str(widest))
    lines = []
    for number, plan in enumerate(plans, start=1):
        if len(plans) > 1:
            lines += [""] * (number > 1) + [f"stage {number}"]
        before = 0
        for width, depth in zip(plan.widths, plan.depths, strict=True):
            length = max(before + 1, round(columns * width / widest))
            bar = GOES_ON * before + (JOINS if before else GOES_ON) * (length - before)
            lines.append(f"{width:>{digits}}  {PASSES * length if depth == 0 else bar}  {blocks_label(depth)}")
            before = length
    if any(len(plan) > 1 for plan in plans):
        lines += ["", LEGEND if all(depth for plan in plans for depth in plan.depths) else f"{LEGEND}   {PASSES} no blocks: passes through"]
    return "\n".join(lines)


def blocks_label(depth: int) -> str:
    """"12 blocks", "1 block", "no blocks"."""
    return "1 block" if depth == 1 else f"{depth or 'no'} blocks"


def stack_svg(plans: Sequence[StepPlan], width: int = 560, widest: int | None = None) -> str:
    """The same picture for a page: one bar per step, bars of one stage close together. `widest` channels fill it, if given."""
    from stepsnet.report import palette
    from stepsnet.report.svg import svg

    widest = widest or max(plan.width for plan in plans)
    left, right, bar, gap, between = 52, 96, 18, 4, 16
    scale = (width - left - right) / widest
    parts: list[str] = []
    top = 2
    for number, plan in enumerate(plans):
        top += between if number else 0
        before = 0.0
        for channels, depth in zip(plan.widths, plan.depths, strict=True):
            length = channels * scale
            fresh = palette.PASSES if depth == 0 else palette.JOINS if before else palette.GOES_ON
            old = palette.PASSES if depth == 0 else palette.GOES_ON
            middle = top + bar / 2 + 4
            parts += [
                f'<text x="{left - 10}" y="{middle}" fill="{palette.INK}" text-anchor="end">{channels}</text>',
                f'<rect x="{left}" y="{top}" width="{before:.1f}" height="{bar}" fill="{old}"/>',
                f'<rect x="{left + before:.1f}" y="{top}" width="{length - before:.1f}" height="{bar}" fill="{fresh}"/>',
                f'<text x="{left + length + 10:.1f}" y="{middle}" fill="{palette.FAINT}">{blocks_label(depth)}</text>',
            ]
            before = length
            top += bar + gap
    return svg(width, top, parts, "the stack: one bar per step, as wide as the step")
