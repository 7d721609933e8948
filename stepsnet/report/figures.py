"""Charts for print and pages, by matplotlib: no global state, the colours of palette.py, numbers that are missing left out.

Pages that must work without matplotlib draw their lines with svg.py instead.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.optional import require
from stepsnet.report.html import check_place
from stepsnet.report.palette import FAINT, GRID, INK, PAPER, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 200
SIZE = (6.4, 4.2)  # inches: a column and a half of a printed page
NOTE_LETTERS = 96  # of a line below the title
MANY_BARS = 8

# Text stays text and names of parts derive from what they show, so that the same figure is the same file.
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT,
    "xtick.color": FAINT, "ytick.color": FAINT, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": GRID, "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.frameon": False,
    "lines.linewidth": 1.8, "lines.markersize": 4, "errorbar.capsize": 2.5, "svg.fonttype": "none", "svg.hashsalt": "stepsnet",
    "pdf.fonttype": 42,
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One series of a chart. A y that is None or not finite leaves a gap; `error` is drawn to both sides of y."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str | None = None
    error: Sequence[float] | None = None
    dashed: bool = False
    marker: str = "o"


def line_chart(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, log_x: bool = False, log_y: bool = False, note: str = "",
    y_from: float | None = None,
) -> Figure:
    """The lines in one frame; a legend below where they have labels. On a logarithmic axis what is not positive leaves a gap.

    The frame reaches down to `y_from` at least, where the distance to it matters (a share to 0).
    """
    with _chart(title, x_label, y_label, note) as (figure, axes):
        for line, color in zip(lines, _colors(lines), strict=True):
            style = "--" if line.dashed else "-"
            marker = line.marker if len(line.x) <= 40 else ""  # more would hide the line
            axes.errorbar(
                list(line.x), _gaps(line.y, positive=log_y), yerr=None if line.error is None else list(line.error),
                label=line.label, color=color, linestyle=style, marker=marker, elinewidth=1,
            )  # fmt: skip
        if y_from is not None:
            axes.set_ylim(bottom=min(y_from, axes.get_ylim()[0]))
        _scales(axes, lines, log_x, log_y)
        _legend(figure, axes, lines)
    return figure


def scatter_chart(
    points: Sequence[Line], *, title: str, x_label: str, y_label: str, log_x: bool = False, log_y: bool = False, note: str = "",
    annotate: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Points without lines between them; `annotate` has a word for each point of each series, "" for none."""
    with _chart(title, x_label, y_label, note) as (figure, axes):
        for index, (series, color) in enumerate(zip(points, _colors(points), strict=True)):
            y = _gaps(series.y, positive=log_y)
            axes.errorbar(
                list(series.x), y, yerr=None if series.error is None else list(series.error),
                label=series.label, color=color, linestyle="", marker=series.marker, markersize=6, elinewidth=1,
            )  # fmt: skip
            for at, value, word in zip(series.x, y, annotate[index] if annotate else [""] * len(y), strict=True):
                if word and math.isfinite(value):
                    axes.annotate(word, (at, value), xytext=(5, 4), textcoords="offset points", fontsize=8, color=color)
        axes.margins(x=0.1, y=0.1)  # room for the words
        _scales(axes, points, log_x, log_y)
        _legend(figure, axes, points)
    return figure


def bar_chart(
    labels: Sequence[str], values: Sequence[float], *, errors: Sequence[float] | None = None, colors: Sequence[str] | None = None,
    title: str, y_label: str, note: str = "",
) -> Figure:
    """One bar a label, with its value above it."""
    with _chart(title, "", y_label, note) as (figure, axes):
        places = range(len(labels))
        heights = _gaps(values)
        bars = axes.bar(places, heights, yerr=None if errors is None else list(errors), color=list(colors or [SERIES[1]] * len(labels)),
                        width=0.68, error_kw={"elinewidth": 1, "ecolor": INK})  # fmt: skip
        axes.bar_label(bars, labels=_alike(heights), padding=2, fontsize=8)
        crowded = len(labels) > MANY_BARS
        words = list(labels) if crowded else [textwrap.fill(label, max(8, 70 // max(1, len(labels)))) for label in labels]
        axes.set_xticks(places, words, rotation=40 if crowded else 0, ha="right" if crowded else "center", color=INK)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.12)
    return figure


def heat_map(
    values: Sequence[Sequence[float | None]], *, x: Sequence[float], y: Sequence[float], title: str, x_label: str, y_label: str,
    bar_label: str, note: str = "", limits: tuple[float, float] | None = None,
) -> Figure:
    """`values[i][j]` at (x[j], y[i]), each cell as wide as the distance to its neighbours; a value that is missing stays grey.

    The colours run from dark (low) to light (high), in print too. `limits` are the ends of the scale, by default the data's own.
    """
    with _chart(title, x_label, y_label, note) as (figure, axes):
        low, high = limits or (None, None)
        axes.set_facecolor(GRID)
        axes.grid(visible=False)
        cells = axes.pcolormesh(_edges(x), _edges(y), [_gaps(row) for row in values], cmap="viridis", vmin=low, vmax=high, rasterized=True)
        bar = figure.colorbar(cells, ax=axes, label=bar_label)
        bar.outline.set_visible(False)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a .png, .svg or .pdf; the file appears whole or not at all."""
    path = check_picture(path)
    replace_file(path, _printed(figure, path.suffix.lower()[1:]))


def check_picture(path: Path) -> Path:
    """What is wrong with the name of a picture, or with drawing at all, said before hours went into it."""
    path = Path(path)
    require("matplotlib", extra="plots")
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is no picture this writes: its name should end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return check_place(path)


def figure_svg(figure: Figure) -> str:
    """The figure as an element to stand in a page, which may hold several: no names that could collide, nothing to load."""
    text = _printed(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)  # a style would reach the whole page
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = text.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    root = '<svg role="img" stroke-linejoin="round" style="max-width:100%;height:auto" '
    return text.replace("<svg ", root, 1).strip()


@contextmanager
def _chart(title: str, x_label: str, y_label: str, note: str) -> Iterator[tuple[Figure, Axes]]:
    """An empty frame with its words, under our style and without pyplot, whose figures would outlive us."""
    with require("matplotlib", extra="plots").rc_context(STYLE):
        figure = require("matplotlib.figure", extra="plots").Figure(figsize=SIZE, dpi=DOTS_PER_INCH, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
        if note:
            axes.set_title(textwrap.fill(note, NOTE_LETTERS), loc="left", fontsize=8, color=FAINT)
        yield figure, axes


def _printed(figure: Figure, kind: str) -> bytes:
    """The file's content, without the date and the program that wrote it."""
    nameless = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None}}
    file = io.BytesIO()
    with require("matplotlib", extra="plots").rc_context(STYLE):
        figure.savefig(file, format=kind, metadata=nameless[kind])
    return file.getvalue()


def _colors(lines: Sequence[Line]) -> list[str]:
    return [line.color or SERIES[index % len(SERIES)] for index, line in enumerate(lines)]


def _gaps(values: Sequence[float | None], *, positive: bool = False) -> list[float]:
    """Numbers that cannot be drawn as NaN, which matplotlib leaves out."""
    return [
        float(value) if value is not None and math.isfinite(value) and (value > 0 or not positive) else math.nan for value in values
    ]  # fmt: skip


def _alike(values: Sequence[float]) -> list[str]:
    """Numbers to be compared, with as many decimals as show three digits of the largest; "" for what is not finite."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest else 0
    return [f"{value:z.{decimals}f}" if math.isfinite(value) else "" for value in values]


def _edges(centres: Sequence[float]) -> list[float]:
    """The borders of cells around growing centres: halfway to the neighbours."""
    middles = [(left + right) / 2 for left, right in pairwise(centres)]
    first = centres[0] - middles[0] if middles else 0.5
    last = centres[-1] - middles[-1] if middles else 0.5
    return [centres[0] - abs(first), *middles, centres[-1] + last]


def _scales(axes: Axes, lines: Sequence[Line], log_x: bool, log_y: bool) -> None:
    """Logarithms where asked for, in numbers and not in powers; whole numbers where only whole numbers are shown (block, step)."""
    ticker = require("matplotlib.ticker", extra="plots")
    for axis, logarithmic in ((axes.xaxis, log_x), (axes.yaxis, log_y)):
        if logarithmic:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.7g}" if 1e-4 <= value < 1e6 else f"{value:.0e}"))
    if not log_x and all(float(value).is_integer() for line in lines for value in line.x):
        axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=9, integer=True))


def _legend(figure: Figure, axes: Axes, lines: Sequence[Line]) -> None:
    """Below the frame, where it hides nothing."""
    if any(line.label for line in lines):
        handles, labels = axes.get_legend_handles_labels()
        columns = max(1, min(len(labels), NOTE_LETTERS // (max(map(len, labels)) + 8)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9, handlelength=2.8)
