"""A study's report: registration, outcome by the rule, tables and charts; as a page and as Markdown, from the same content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepsnet.report.chart import Chart
from stepsnet.report.html import figures, page, paragraph, section, write
from stepsnet.report.table import Table


@dataclass(frozen=True)
class StudyPage:
    """The content of a report. Tables have titles; charts have the names of their files."""

    title: str
    lead: str
    registered: Sequence[tuple[str, str]]
    outcomes: Sequence[str]
    remarks: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[tuple[str, Chart]]


def write_study(folder: Path, content: StudyPage) -> tuple[Path, Path]:
    """Write report.html, which is complete in itself, and report.md with its charts as files beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in content.figures:
        chart.save(folder / f"{name}.svg")
    return write(folder / "report.html", html(content)), write(folder / "report.md", markdown(content))


def html(content: StudyPage) -> str:
    sections = [
        section("Outcome by the rule", *map(paragraph, content.outcomes), *map(paragraph, content.remarks)),
        section("Registered before it ran", *(paragraph(f"{term}: {words}") for term, words in content.registered)),
        section("Results", *(table.html() for table in content.tables)),
        section("Charts", figures(*(chart for _, chart in content.figures))),
    ]
    return page(content.title, content.lead, sections)


def markdown(content: StudyPage) -> str:
    parts = [f"# {content.title}", content.lead, _list(f"**{term}.** {words}" for term, words in content.registered)]
    parts += ["## Outcome by the rule", _list(content.outcomes), *content.remarks]
    for table in content.tables:
        parts += [f"## {table.title}", table.markdown()]
    parts += [f"![{name}]({name}.svg)" for name, _ in content.figures]
    return "\n\n".join(filter(None, parts)) + "\n"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
