"""A study's report: what was registered, what came out by the rule, tables and figures; as a page and as Markdown, from the same parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.report.figures import figure_svg, save_figure
from stepsnet.report.html import figures, page, paragraph, section, table, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StudyTable:
    """Its first column holds names, the others numbers; `colors` has one a row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    colors: Sequence[str] = ()


@dataclass(frozen=True)
class StudyPage:
    """All that a report shows, in words; figures under the names of their files."""

    title: str
    lead: str
    registered: Sequence[tuple[str, str]]
    outcomes: Sequence[str]
    remarks: Sequence[str]
    tables: Sequence[StudyTable]
    figures: Sequence[tuple[str, Figure]]


def write_study(folder: Path, content: StudyPage) -> tuple[Path, Path]:
    """report.html, complete in itself, and report.md with its figures beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in content.figures:
        save_figure(figure, folder / f"{name}.svg")
    return write(folder / "report.html", html(content)), write(folder / "report.md", markdown(content))


def html(content: StudyPage) -> str:
    sections = [
        section("Registered before it ran", *(paragraph(f"{term}: {words}") for term, words in content.registered)),
        section("Outcome by the rule", *map(paragraph, content.outcomes), *map(paragraph, content.remarks)),
        *(section(found.caption, table(found.columns, found.rows, colors=found.colors)) for found in content.tables),
        section("Figures", figures(*(("", figure_svg(figure)) for _, figure in content.figures))),
    ]
    return page(content.title, content.lead, sections)


def markdown(content: StudyPage) -> str:
    parts = [f"# {content.title}", content.lead, _list(f"**{term}.** {words}" for term, words in content.registered)]
    parts += ["## Outcome by the rule", _list(content.outcomes), *content.remarks]
    for found in content.tables:
        parts += [f"## {found.caption}", markdown_table(found)]
    parts += [f"![{name}]({name}.svg)" for name, _ in content.figures]
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_table(found: StudyTable) -> str:
    ruler = ["---", *["---:"] * (len(found.columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (found.columns, ruler, *found.rows))


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
