"""The one table type: cells are strings; it prints on a terminal of any width, in Markdown and in HTML.

A cell of a number or name column is never cut or wrapped. Where the terminal is too narrow, titles wrap, then text
columns wrap between words, then whole columns are left out, and a last line names them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["number", "name", "text"]

GAP = 2  # blanks between columns
TEXT_WIDTH = 16  # a text column is not wrapped to less
BOLD, PLAIN = "\033[1m", "\033[0m"


@dataclass(frozen=True)
class Column:
    """`kind` decides alignment and wrapping: numbers stand right, names and texts left; only a text may wrap.

    `priority` decides which columns are left out first: those with the largest number, and of equal ones the rightmost.
    Columns of priority 0 always stay. By default that is 0 for names and 1 for the others.
    """

    title: str
    kind: Kind = "number"
    priority: int | None = None
    align: Literal["left", "right"] | None = None

    @property
    def right(self) -> bool:
        return (self.align or ("right" if self.kind == "number" else "left")) == "right"

    @property
    def drop_order(self) -> int:
        return self.priority if self.priority is not None else 0 if self.kind == "name" else 1


@dataclass(frozen=True)
class Table:
    """Columns and rows of strings. A column given as a string is a number column, but the first a name column.

    `colors` (names of report/svg.py) put a patch of colour before each row in HTML, as a legend for the charts beside
    it.
    """

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    colors: Sequence[str] = ()
    _columns: tuple[Column, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        made = (Column(each, "number" if index else "name") if isinstance(each, str) else each
                for index, each in enumerate(self.columns))  # fmt: skip
        object.__setattr__(self, "_columns", tuple(made))
        for row in self.rows:
            if len(row) != len(self._columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self._columns)} columns: {list(row)}")

    @property
    def titles(self) -> list[str]:
        return [column.title for column in self._columns]

    def text(self, width: int | None = None, *, bold: bool = False) -> str:
        """Lines of at most `width` cells (None: any); longer only if the columns that always stay need more.

        `bold` prints the titles in bold by terminal codes.
        """
        shown, widths = self._fit(width)
        columns = [self._columns[index] for index in shown]
        start, end = (BOLD, PLAIN) if bold else ("", "")
        lines = [f"{start}{line}{end}" for line in wrapped(self.title, width or len(self.title))] if self.title else []
        titles = [wrapped(column.title, size) for column, size in zip(columns, widths, strict=True)]
        lines += [f"{start}{line}{end}" for line in _aligned(titles, columns, widths)]
        lines.append("─" * (sum(widths) + GAP * (len(widths) - 1)))
        for row in self.rows:
            cells = [wrapped(row[index], size) if self._columns[index].kind == "text" else [row[index]]
                     for index, size in zip(shown, widths, strict=True)]  # fmt: skip
            lines += _aligned(cells, columns, widths)
        left_out = [column.title for index, column in enumerate(self._columns) if index not in shown]
        if left_out:
            lines += wrapped(f"Left out to fit {width} columns: {'; '.join(left_out)}.", width or 0)
        return "\n".join(lines)

    def markdown(self) -> str:
        rule = ["---:" if column.right else "---" for column in self._columns]
        rows = ([cell.replace("|", "\\|") for cell in row] for row in (self.titles, *self.rows))
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], f"| {' | '.join(rule)} |", *lines[1:]])

    def html(self) -> str:
        """An element that scrolls sideways where it is wider than the page; "" for a table without rows."""
        if not self.rows:
            return ""
        patches = [f'<span class="swatch {color}"></span>' for color in self.colors]
        rows = zip(self.rows, patches or [""] * len(self.rows), strict=True)
        body = "\n".join(self._html_row("td", row, patch) for row, patch in rows)
        titles = self._html_row("th", self.titles)
        caption = f"<caption><span>{escape(self.title)}</span></caption>\n" if self.title else ""
        content = f"{caption}<thead>{titles}</thead>\n<tbody>\n{body}\n</tbody>"
        return f'<div class="scroll"><table>\n{content}\n</table></div>'

    def _html_row(self, tag: str, row: Sequence[str], patch: str = "") -> str:
        cells = []
        for index, (column, cell) in enumerate(zip(self._columns, row, strict=True)):
            classes = column.kind if column.right == (column.kind == "number") else f"{column.kind} {column.align}"
            cells.append(f'<{tag} class="{classes}">{patch if index == 0 else ""}{escape(cell)}</{tag}>')
        return f"<tr>{''.join(cells)}</tr>"

    def _fit(self, width: int | None) -> tuple[list[int], list[int]]:
        """The columns to show, and their widths."""
        shown = list(range(len(self._columns)))
        while True:
            sizes = [self._sizes(index) for index in shown]
            space = None if width is None else width - GAP * (len(shown) - 1)
            if space is None or sum(widest for _, _, widest in sizes) <= space:
                return shown, [widest for _, _, widest in sizes]
            smallest, with_cells = (sum(size[at] for size in sizes) for at in (0, 1))
            droppable = [index for index in shown if self._columns[index].drop_order > 0]
            if smallest <= space or not droppable or len(shown) == 1:
                # First titles wrap, and only if that is not enough, texts.
                low, high = (1, 2) if with_cells <= space else (0, 1)
                return shown, _grown([size[low] for size in sizes], [size[high] for size in sizes], space)
            shown.remove(max(droppable, key=lambda index: (self._columns[index].drop_order, index)))

    def _sizes(self, index: int) -> tuple[int, int, int]:
        """The least width of a column, the width of its cells unwrapped, and that with its title on one line."""
        column, cells = self._columns[index], [row[index] for row in self.rows]
        word = max((cell_width(word) for word in column.title.split()), default=0)
        widest = max(map(cell_width, cells), default=0)
        with_cells = max(word, widest)
        least = with_cells
        if column.kind == "text":
            longest = max((cell_width(part) for cell in cells for part in cell.split()), default=0)
            least = max(word, longest, min(widest, TEXT_WIDTH))
        return least, with_cells, max(widest, cell_width(column.title))


def cell_width(text: str) -> int:
    """How many terminal cells a string takes: none for a combining mark, two for a wide character."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _grown(low: list[int], high: list[int], space: int) -> list[int]:
    """Widths between `low` and `high` that use the space: each cell goes to the column that lacks most."""
    widths = list(low)
    for _ in range(max(0, space - sum(low))):
        lack = [most - size for most, size in zip(high, widths, strict=True)]
        if max(lack) <= 0:
            break
        widths[lack.index(max(lack))] += 1
    return widths


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words; a longer word keeps its line."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_width(lines[-1]) + 1 + cell_width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _aligned(cells: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """The lines of one row, whose cells may have several; no trailing blanks."""
    lines = []
    for number in range(max(map(len, cells))):
        parts = []
        for lines_of, column, width in zip(cells, columns, widths, strict=True):
            part = lines_of[number] if number < len(lines_of) else ""
            blanks = " " * (width - cell_width(part))
            parts.append(blanks + part if column.right else part + blanks)
        lines.append((" " * GAP).join(parts).rstrip())
    return lines
