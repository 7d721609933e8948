"""The explorer: one self-contained HTML page to choose a plan and see what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

from stepsnet.report.html import COPY, STYLE, figures, section
from stepsnet.report.run import gamma_chart, gamma_words
from stepsnet.runs.folder import GAMMA, PRETRAINED, read_lines

_FILES = Path(__file__).parent
COSTS = _FILES / "costs.json"
"""The costs of all plans as polynomials. tests/report/explorer/fit.py solves them from what Python counts."""


def explorer_page() -> str:
    """The page as text."""
    types = list(json.loads(_read(COSTS.name))["types"])
    parts = {
        "style": STYLE + _read("page.css"),
        "types": ", ".join(types[:-1]) + f" or {types[-1]}",
        "data": _read(COSTS.name).replace("</", "<\\/"),
        "engine": _read("engine.js"),
        "script": _read("page.js"),
        "copy": COPY,
        "gamma": _gamma(),
    }
    document = _read("page.html")
    for name, content in parts.items():
        document = document.replace("{{" + name + "}}", content)
    return document


def _gamma() -> str:
    """γ over depth of the networks that ship trained, as recorded in their training."""
    folders = sorted(path.parent for path in PRETRAINED.glob(f"*/{GAMMA}"))
    records = {folder.name: read_lines(folder / GAMMA) for folder in folders}
    charts = [replace(chart, title=name) for name, lines in records.items() for chart in gamma_chart(lines)]
    return section("γ of trained networks", figures(*charts), *gamma_words([*chain(*records.values())]))


def _read(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")
