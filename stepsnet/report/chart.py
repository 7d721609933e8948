"""The one chart engine: lines, bars, heat maps and stacks of steps as SVG text, without a library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.report import svg
from stepsnet.report.html import check_place
from stepsnet.report.svg import Axis, known, number, short
from stepsnet.report.table import wrapped

if TYPE_CHECKING:  # importing the plan at run time would import torch
    from stepsnet.macro.plan import StepPlan

LEVELS = 48  # colours of a heat map
MOST_CELLS = 96  # of a heat map along one axis: more are averaged
MARKERS = 40  # a line with more points is drawn without markers, and its errors as a band


@dataclass(frozen=True)
class Line:
    """One series of a chart. A y that is None or not finite leaves a gap; `error` is drawn to both sides of y.

    `names` are shown with the points, in their tooltips. Without `joined` there are only points.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str = ""
    error: Sequence[float] | None = None
    dashed: bool = False
    joined: bool = True
    names: Sequence[str] = ()

    def points(self, *, positive: bool = False) -> list[tuple[float, float] | None]:
        pairs = zip(self.x, self.y, strict=True)
        return [(float(x), float(y)) if known(y, positive=positive) else None for x, y in pairs]

    def spans(self) -> list[tuple[float, float]]:
        """The ends of the error bars of the points that have one."""
        pairs = zip(self.y, self.error or (), strict=False)
        return [(y - error, y + error) for y, error in pairs if known(y) and known(error, positive=True)]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """`title` and `note` stand above the chart: as a caption in a page, drawn in a file."""

    title: str
    note: str = ""
    width: int = 440  # not much more than a phone has, so that text stays readable there

    def draw(self) -> tuple[float, list[str]]:
        """The height, and the elements."""
        raise NotImplementedError

    def element(self) -> str:
        """An element for a page, without title and note; "" if there is nothing to draw."""
        height, parts = self.draw()
        return svg.image(self.width, height, parts, self.title) if parts else ""

    def document(self) -> str:
        """A file of its own: with title, note, background and colours for light and dark."""
        height, parts = self.draw()
        note = wrapped(self.note, int(self.width / (0.5 * svg.FONT))) if self.note else []
        top = 32 + svg.ROW * len(note)
        head = [f"<style>{svg.COLOR_STYLE}</style>", svg.box(0, 0, self.width, height + top, "paper")]
        head.append(f'<g font-weight="600">{svg.text(4, 20, self.title, "ink", size=15)}</g>')
        head += [svg.text(4, 39 + svg.ROW * row, line, "faint", size=12) for row, line in enumerate(note)]
        inside = [*head, f'<g transform="translate(0 {top})">', *parts, "</g>"]
        return svg.image(self.width, height + top, inside, self.title) + "\n"

    def save(self, path: Path) -> Path:
        """Write a .svg file; it appears complete or not at all."""
        replace_file(check_chart_path(path), self.document().encode())
        return path


@dataclass(frozen=True, kw_only=True)
class LineChart(Chart):
    """Lines in one frame, a legend below where they have labels. On a logarithmic axis a value ≤ 0 leaves a gap.

    The y axis shows at least `y_range`. `reference` is a dashed horizontal line. `x_ticks` replace the ticks that are
    chosen from the range.
    """

    lines: Sequence[Line]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, ...] = ()
    reference: float | None = None
    x_ticks: Sequence[float] = ()
    height: int = 270

    def axes(self) -> tuple[Axis, Axis] | None:
        """Of x and y; None without a point."""
        drawn = [point for line in self.lines for point in line.points(positive=self.log_y) if point]
        points = [point for point in drawn if point[0] > 0 or not self.log_x]
        if not points:
            return None
        ys = [*(y for _, y in points), *self.y_range, *([] if self.reference is None else [self.reference])]
        ys += [end for line in self.lines for span in line.spans() for end in span if end > 0 or not self.log_y]
        y = Axis.over(ys, log=self.log_y, rounded=True)
        whole = all(x.is_integer() for x, _ in points)
        x = Axis.over([*(x for x, _ in points), *self.x_ticks], log=self.log_x, whole=whole)
        left = 12 + svg.LETTER * max(len(number(tick)) for tick in y.ticks(5))
        last = number(x.ticks(6)[-1])
        return x.between(left + 5, self.width - 8 - svg.LETTER * len(last) / 2), y.between(self.height - 46, 30)

    def draw(self) -> tuple[float, list[str]]:
        axes = self.axes()
        if axes is None:
            return 0.0, []
        x, y = axes
        parts = [svg.text(2, 14, self.y_label, "ink")]
        for tick in y.ticks(5):
            parts.append(svg.rule(x.start - 5, y(tick), x.end, y(tick), "grid"))
            parts.append(svg.text(x.start - 11, y(tick) + 4, number(tick), "faint", "end"))
        parts += _x_axis(x, y.start, self.x_label, self.x_ticks)
        if self.reference is not None:
            parts.append(svg.rule(x.start - 5, y(self.reference), x.end, y(self.reference), "faint", dashed=True))
        colors = [line.color or svg.SERIES[index % len(svg.SERIES)] for index, line in enumerate(self.lines)]
        for line, color in zip(self.lines, colors, strict=True):
            parts += _draw_line(line, color, x, y)
        entries = [(line, color) for line, color in zip(self.lines, colors, strict=True) if line.label]
        legend, rows = _legend(entries, x.start - 5, self.width, self.height + 10)
        return self.height + svg.ROW * rows, parts + legend


@dataclass(frozen=True, kw_only=True)
class BarChart(Chart):
    """Horizontal bars, one a label, its value at the end. `spans` are the ends of whiskers: quartiles, or mean ± error.

    `reference` is a dashed line, 1.0 for ratios of speed.
    """

    labels: Sequence[str]
    values: Sequence[float | None]
    x_label: str
    spans: Sequence[tuple[float, float] | None] = ()
    colors: Sequence[str] = ()
    reference: float | None = None

    def draw(self) -> tuple[float, list[str]]:
        numbers = [value for value in self.values if known(value)]
        if not numbers:
            return 0.0, []
        spans = [span if span and all(map(known, span)) else None for span in self.spans or [None] * len(self.values)]
        ends = [end for span in spans if span for end in span]
        words = svg.alike(self.values)
        letters = int(0.46 * self.width / svg.LETTER)
        lines = [wrapped(label, math.ceil(len(label) / math.ceil(len(label) / letters)) + 4) for label in self.labels]
        left = 10 + max(svg.width_of(line) for label in lines for line in label)
        right = 14 + svg.LETTER * max(map(len, words))
        x = Axis.over([0.0, *numbers, *ends, *([] if self.reference is None else [self.reference])], rounded=True)
        x = x.between(left, self.width - right)
        bars: list[str] = []
        top = 4.0
        colors = self.colors or [svg.STEPS] * len(self.values)
        for label, value, word, span, color in zip(lines, self.values, words, spans, colors, strict=True):
            height = max(26, 15 * len(label) + 8)
            middle = top + height / 2
            first = middle + 5 - 7.5 * (len(label) - 1)
            bars += [svg.text(left - 8, first + 15 * row, line, "ink", "end") for row, line in enumerate(label)]
            if known(value):
                start, end = sorted((x(0.0), x(value)))
                tip = f"{' '.join(label)}: {word}" + (f", from {short(span[0])} to {short(span[1])}" if span else "")
                bars.append(svg.box(start, middle - 8, max(1.0, end - start), 16, color, tip))
                bars += [_whisker(x(span[0]), x(span[1]), middle)] if span else []
            bars.append(svg.text(self.width - 4, middle + 5, word, "ink", "end"))
            top += height
        grid = [svg.rule(x(tick), 2, x(tick), top, "grid") for tick in _x_ticks(x)]
        parts = [*grid, *bars, svg.rule(x(0.0), 2, x(0.0), top, "faint")]
        if self.reference is not None:
            parts.append(svg.rule(x(self.reference), 2, x(self.reference), top, "ink", dashed=True))
        parts += _x_axis(x, top, self.x_label)
        return top + 46, parts


@dataclass(frozen=True, kw_only=True)
class HeatMap(Chart):
    """`values[i][j]` at (x[j], y[i]); a missing value stays grey. Dark is low, light is high.

    The x axis begins at x[0] and ends at x[-1]: each column reaches half-way to its neighbours. `limits` are the ends
    of the scale.
    """

    values: Sequence[Sequence[float | None]]
    x: Sequence[float]
    y: Sequence[float]
    x_label: str
    y_label: str
    scale_label: str
    limits: tuple[float, float]
    height: int = 270

    def draw(self) -> tuple[float, list[str]]:
        xs, rows = _averaged(self.x, list(zip(*self.values, strict=True)))
        ys, columns = _averaged(self.y, list(zip(*rows, strict=True)))  # columns[i][j] again, fewer of them
        edges_x, edges_y = svg.edges(xs, outside=False), svg.edges(ys, outside=True)
        left = 17 + svg.LETTER * max(len(number(value)) for value in self.y)
        x = Axis(edges_x[0], edges_x[-1], whole=True).between(left, self.width - 74)
        y = Axis(edges_y[0], edges_y[-1], whole=True).between(self.height - 46, 30)
        height = y.start - y.end
        parts = [svg.text(2, 14, self.y_label, "ink"), svg.box(x.start, y.end, x.end - x.start, height, "grid")]
        shapes: dict[int, list[str]] = {}
        low, high = self.limits
        for row, (bottom, top) in zip(columns, pairwise(edges_y), strict=True):
            for value, (start, end) in zip(row, pairwise(edges_x), strict=True):
                if known(value):
                    level = round((LEVELS - 1) * min(1.0, max(0.0, (value - low) / (high - low))))
                    shape = f"M{x(start):.1f} {y(top):.1f}H{x(end):.1f}V{y(bottom):.1f}H{x(start):.1f}z"
                    shapes.setdefault(level, []).append(shape)
        parts += [f'<path d="{"".join(shape)}" fill="{svg.heat(level / (LEVELS - 1))}" shape-rendering="crispEdges"/>'
                  for level, shape in sorted(shapes.items())]  # fmt: skip
        for column, at, (start, end) in zip(zip(*columns, strict=True), xs, pairwise(edges_x), strict=True):
            found = [value for value in column if known(value)]
            values = f"lowest {min(found):.3g}, highest {max(found):.3g}" if found else "no value"
            tip = f"{self.x_label} {number(round(at))}: {values}"
            cover = svg.box(x(start), y.end, x(end) - x(start), height, "grid", tip)
            parts.append(f'<g fill-opacity="0">{cover}</g>')
        parts += [svg.text(x.start - 8, y(tick) + 4, number(tick), "faint", "end") for tick in y.ticks(5)]
        return self.height, parts + _x_axis(x, y.start, self.x_label) + self._scale(y)

    def _scale(self, y: Axis) -> list[str]:
        """The colours and their values, at the right."""
        left, size = self.width - 62, (y.start - y.end) / LEVELS
        parts = [f'<rect x="{left}" y="{y.start - size * (level + 1):.2f}" width="14" height="{size + 0.4:.2f}" '
                 f'fill="{svg.heat(level / (LEVELS - 1))}"/>' for level in range(LEVELS)]  # fmt: skip
        scale = Axis(*self.limits).between(y.start, y.end)
        parts += [svg.text(left + 19, scale(tick) + 4, number(tick), "faint") for tick in scale.ticks(4)]
        return [*parts, svg.text(self.width - 2, 14, self.scale_label, "ink", "end")]


@dataclass(frozen=True, kw_only=True)
class StackChart(Chart):
    """One bar a step in the order of execution, as wide as the step; stages below each other.

    `widest` channels fill the chart, if given. `reverse` is the macro of Eq. 6: wide to narrow.
    """

    plans: Sequence[StepPlan]
    widest: int = 0
    reverse: bool = False

    def draw(self) -> tuple[float, list[str]]:
        left, right, bar, gap = 52, 88, 18, 4
        scale = (self.width - left - right) / (self.widest or max(plan.width for plan in self.plans))
        parts: list[str] = []
        top = 2.0
        for number_, plan in enumerate(self.plans):
            top += 14 if number_ else 0
            steps = list(zip((0, *plan.widths), plan.widths, plan.depths, strict=False))
            for narrower, channels, depth in reversed(steps) if self.reverse else steps:
                shared, length, middle = narrower * scale, channels * scale, top + bar / 2 + 5
                old, new = ("old", "new" if narrower else "old") if depth else ("empty", "empty")
                parts.append(svg.text(left - 8, middle, str(channels), "ink", "end"))
                parts += [svg.box(left, top, shared, bar, old), svg.box(left + shared, top, length - shared, bar, new)]
                parts.append(svg.text(left + length + 8, middle, blocks_label(depth), "faint"))
                top += bar + gap
        return top, parts


BAR_OLD, BAR_NEW, BAR_EMPTY = "█", "▓", "░"
LEGEND = f"{BAR_OLD} channels of the step before\n{BAR_NEW} channels that join here"
LEGEND_REVERSE = f"{BAR_OLD} channels of the next step\n{BAR_NEW} channels that leave here"


def stack_text(plans: Sequence[StepPlan], columns: int = 64, *, reverse: bool = False) -> str:
    """The stack for a terminal, one bar a step in the order of execution; the widest step takes `columns` characters.

    Channels of the step before are darker than those that join. With `reverse` (Eq. 6: wide to narrow) those of the
    next step are darker than those that leave. A step without blocks, which passes its channels on, is faint.
    """
    widest = max(plan.width for plan in plans)
    digits = len(str(widest))
    lines = []
    for stage, plan in enumerate(plans, start=1):
        if len(plans) > 1:
            lines += [""] * (stage > 1) + [f"stage {stage}"]
        narrower, bars = 0, []
        for width, depth in zip(plan.widths, plan.depths, strict=True):
            length = max(narrower + 1, round(columns * width / widest))
            bar = BAR_OLD * narrower + (BAR_NEW if narrower else BAR_OLD) * (length - narrower)
            bars.append(f"{width:>{digits}}  {BAR_EMPTY * length if depth == 0 else bar}  {blocks_label(depth)}")
            narrower = length
        lines += reversed(bars) if reverse else bars
    if any(len(plan) > 1 for plan in plans):
        empty = any(depth == 0 for plan in plans for depth in plan.depths)
        legend = LEGEND_REVERSE if reverse else LEGEND
        lines += ["", f"{legend}\n{BAR_EMPTY} no blocks: passes through" if empty else legend]
    return "\n".join(lines)


def blocks_label(depth: int) -> str:
    """"12 blocks", "1 block", "no blocks"."""
    return "1 block" if depth == 1 else f"{depth or 'no'} blocks"


def check_chart_path(path: Path) -> Path:
    """The path, or an error: to call before the work whose result is to be drawn."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path}: charts are written as SVG; the name must end in .svg")
    return check_place(path)


def _x_axis(x: Axis, bottom: float, label: str, ticks: Sequence[float] = ()) -> list[str]:
    """The line, its ticks and the label below."""
    parts = [svg.rule(x.start, bottom, x.end, bottom, "faint")]
    for tick in ticks or _x_ticks(x):
        parts.append(svg.rule(x(tick), bottom, x(tick), bottom + 4, "faint"))
        parts.append(svg.text(x(tick), bottom + 18, number(tick), "faint", "middle"))
    return [*parts, svg.text((x.start + x.end) / 2, bottom + 38, label, "ink", "middle")]


def _x_ticks(x: Axis) -> list[float]:
    """As many ticks as fit."""
    letters = max(len(number(tick)) for tick in x.ticks(4))
    return x.ticks(max(2, min(8, int((x.end - x.start) / (svg.LETTER * letters + 18)))))


def _draw_line(line: Line, color: str, x: Axis, y: Axis) -> list[str]:
    """Runs of points as paths. Few points get dots, tooltips and whiskers; many points get a band for their errors."""
    points = [point if point and (point[0] > 0 or not x.log) else None for point in line.points(positive=y.log)]
    errors = [error if known(error, positive=True) else 0.0 for error in line.error or [0.0] * len(points)]
    few = len(points) <= MARKERS
    parts = [f'<g class="{color}" fill="currentColor" stroke="currentColor">', f"<title>{escape(line.label)}</title>"]
    for present, run in groupby(zip(points, errors, strict=True), lambda pair: pair[0] is not None):
        drawn = [(point, error) for point, error in run if present and point]
        if line.joined and len(drawn) > 1:
            dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
            path = _path([(x(at), y(value)) for (at, value), _ in drawn])
            parts.append(f'<path d="{path}" fill="none" stroke-width="2" stroke-linejoin="round"{dashes}/>')
        ends = [(x(at), y(max(value - error, y.low)), y(value + error)) for (at, value), error in drawn if error]
        if few:
            whiskers = [f"M{at - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8" for at, low, high in ends]
            parts += [f'<path d="{whisker}" fill="none"/>' for whisker in whiskers]
        elif ends:
            band = _path([*((at, high) for at, _, high in ends), *((at, low) for at, low, _ in reversed(ends))])
            parts.append(f'<path d="{band}z" stroke="none" fill-opacity="0.2"/>')
        if few or len(drawn) == 1:
            parts += [f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3" stroke="none"/>' for (at, value), _ in drawn]
    for name, point, error in zip(line.names or [line.label] * len(points), points, errors, strict=True):
        if few and point:
            values = f"{short(point[0])}, {short(point[1])}" + f" ± {short(error)}" * bool(error)
            tip = f"{name}: {values}" if name else values
            parts.append(f'<circle cx="{x(point[0]):.1f}" cy="{y(point[1]):.1f}" r="8" stroke="none" fill-opacity="0">'
                         f"<title>{escape(tip)}</title></circle>")  # fmt: skip
    return [*parts, "</g>"]


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _legend(entries: Sequence[tuple[Line, str]], left: float, width: float, top: float) -> tuple[list[str], int]:
    """As many entries in a row as fit; and the number of rows."""
    parts: list[str] = []
    at, row = left, 0
    for line, color in entries:
        size = 34 + svg.width_of(line.label)
        if at > left and at + size > width:
            at, row = left, row + 1
        y = top + svg.ROW * row
        stroke = svg.rule(at, y - 4, at + 24, y - 4, color, dashed=line.dashed)
        dot = f'<circle class="{color}" cx="{at + 12:.1f}" cy="{y - 4:.1f}" r="4" fill="currentColor"/>'
        parts.append(f'<g stroke-width="2.5">{stroke}</g>' if line.joined else dot)
        parts.append(svg.text(at + 30, y, line.label, "ink"))
        at += size + 14
    return parts, row + 1 if entries else 0


def _whisker(start: float, end: float, y: float) -> str:
    path = f"M{start:.1f} {y - 5:.1f}v10m0 -5H{end:.1f}m0 -5v10"
    return f'<path class="ink" d="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/>'


def _averaged(
    at: Sequence[float], rows: Sequence[Sequence[float | None]]
) -> tuple[list[float], list[list[float | None]]]:
    """At most MOST_CELLS rows, each the mean of its neighbours."""
    positions = svg.binned(at, at, MOST_CELLS)[0]
    columns = [svg.binned(at, column, MOST_CELLS)[1] for column in zip(*rows, strict=True)]
    return positions, [list(row) for row in zip(*columns, strict=True)]
