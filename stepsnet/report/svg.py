"""Line charts as SVG text: crisp at any size, no library, nothing to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stepsnet.report.palette import FAINT, GRID, INK

LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 46  # margins around the plot, in pixels
LEGEND_LINE = 18


@dataclass(frozen=True)
class Line:
    """One line of a chart. A point that is None or not finite leaves a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str
    dashed: bool = False
    faint: bool = False

    def points(self) -> list[tuple[float, float] | None]:
        return [(float(x), float(y)) if y is not None and math.isfinite(y) else None for x, y in zip(self.x, self.y, strict=True)]


def line_chart(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, width: int = 560, height: int = 320,
    y_range: tuple[float, float] | None = None,
) -> str:
    """The lines in one frame, a legend below where there are several. `y_range` is what the frame shows at least."""
    points = [point for line in lines for point in line.points() if point is not None]
    if not points:
        return ""
    named = [line for line in lines if line.label]
    x_low, x_high = _range([x for x, _ in points])
    y_low, y_high = _range([y for _, y in points] + list(y_range or ()))
    y_ticks = ticks(y_low, y_high)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])
    bottom = height - BOTTOM - LEGEND_LINE * len(named)
    frame = _Frame(x_low, x_high, y_low, y_high, LEFT, width - RIGHT, TOP, bottom)
    parts = [f"<title>{escape(title)}</title>", *_axes(frame, y_ticks, x_label, y_label)]
    parts += [element for line in lines for element in _draw(line, frame)]
    for row, line in enumerate(named):
        y = bottom + BOTTOM + LEGEND_LINE * row + 4
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + 26}" y2="{y}" {_stroke(line)}/>')
        parts.append(_text(LEFT + 34, y + 4, line.label, INK, "start"))
    return svg(width, height, parts, title)


def svg(width: int, height: int, parts: Sequence[str], label: str) -> str:
    """A picture of that many pixels that shrinks with the window."""
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:100%;height:auto" font-family="system-ui,sans-serif" font-size="12">\n{inside}\n</svg>'
    )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About that many round numbers that cover [low, high] from inside."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def number(value: float) -> str:
    """A number as an axis shows it: 0.25, 12, 3,000, 2e-06."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def binned(x: Sequence[float], y: Sequence[float | None], bins: int = 150) -> tuple[list[float], list[float | None]]:
    """Means over at most `bins` equal runs of neighbours: what a noisy curve of any length shows to the eye."""
    size = max(1, math.ceil(len(x) / bins))
    means: list[tuple[float, float | None]] = []
    for start in range(0, len(x), size):
        known = [value for value in y[start : start + size] if value is not None and math.isfinite(value)]
        piece = x[start : start + size]
        means.append((sum(piece) / len(piece), sum(known) / len(known) if known else None))
    return [at for at, _ in means], [value for _, value in means]


@dataclass(frozen=True)
class _Frame:
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    left: float
    right: float
    top: float
    bottom: float

    def x(self, value: float) -> float:
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y_low) / (self.y_high - self.y_low) * (self.bottom - self.top)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5) if abs(low) < 1 else (low - abs(low) / 2, high + abs(high) / 2)


def _axes(frame: _Frame, y_ticks: Sequence[float], x_label: str, y_label: str) -> list[str]:
    parts = []
    for tick in y_ticks:
        y = frame.y(tick)
        parts.append(f'<line x1="{frame.left}" y1="{y:.1f}" x2="{frame.right}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(frame.left - 8, y + 4, number(tick), FAINT, "end"))
    for tick in ticks(frame.x_low, frame.x_high, 6):
        x = frame.x(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{frame.bottom}" x2="{x:.1f}" y2="{frame.bottom + 4}" stroke="{FAINT}"/>')
        parts.append(_text(x, frame.bottom + 17, number(tick), FAINT, "middle"))
    middle = (frame.top + frame.bottom) / 2
    parts.append(f'<line x1="{frame.left}" y1="{frame.bottom}" x2="{frame.right}" y2="{frame.bottom}" stroke="{FAINT}"/>')
    parts.append(_text((frame.left + frame.right) / 2, frame.bottom + 34, x_label, INK, "middle"))
    parts.append(f'<g transform="rotate(-90 14 {middle})">{_text(14, middle, y_label, INK, "middle")}</g>')
    return parts


def _draw(line: Line, frame: _Frame) -> list[str]:
    """Runs of points as polylines; a point alone as a dot."""
    runs: list[list[str]] = [[]]
    for point in line.points():
        if point is None:
            runs.append([])
        else:
            runs[-1].append(f"{frame.x(point[0]):.1f},{frame.y(point[1]):.1f}")
    parts = []
    for run in filter(None, runs):
        if len(run) == 1:
            x, y = run[0].split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{line.color}"/>')
        else:
            parts.append(f'<polyline points="{" ".join(run)}" fill="none" stroke-linejoin="round" {_stroke(line)}/>')
    return parts


def _stroke(line: Line) -> str:
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    return f'stroke="{line.color}" stroke-width="{1 if line.faint else 2}" stroke-opacity="{0.35 if line.faint else 1}"{dashes}'


def _text(x: float, y: float, words: str, color: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{escape(words)}</text>'
