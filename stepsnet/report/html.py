"""One self-contained page: no scripts, no fonts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.report.palette import FAINT, GRID, INK, PAPER

STYLE = f"""
body {{ margin: 0; background: {PAPER}; color: {INK}; font: 15px/1.55 system-ui, sans-serif; }}
main {{ max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }}
h1 {{ font-size: 25px; margin: 0 0 4px; }}
h2 {{ font-size: 18px; margin: 34px 0 8px; border-top: 1px solid {GRID}; padding-top: 18px; }}
p {{ max-width: 74ch; margin: 8px 0; }}
.lead {{ color: {FAINT}; }}
.figures {{ display: flex; flex-wrap: wrap; gap: 20px 24px; align-items: flex-start; }}
figure {{ margin: 0; max-width: 100%; }}
figcaption {{ font-weight: 600; margin: 6px 0 2px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 10px 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 5px 14px 5px 0; text-align: right; border-bottom: 1px solid {GRID}; white-space: nowrap; }}
th {{ color: {FAINT}; font-weight: 600; }}
th.words, td.words {{ text-align: left; }}
pre {{ background: #f6f7f9; padding: 12px 14px; overflow-x: auto; font-size: 13px; line-height: 1.4; }}
.swatch {{ display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 7px; }}
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """A whole document from sections that are HTML already."""
    body = "\n".join(filter(None, sections))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f'<p class="lead">{escape(lead)}</p>\n{body}\n</main>\n</body>\n</html>\n'
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; nothing at all where there is nothing to show."""
    shown = [part for part in parts if part]
    return "\n".join([f"<h2>{escape(title)}</h2>", *shown]) if shown else ""


def paragraph(words: str) -> str:
    return f"<p>{escape(words)}</p>"


def figures(*drawn: tuple[str, str]) -> str:
    """Pictures side by side, each with its caption above; (caption, "") is left out."""
    shown = [f"<figure><figcaption>{escape(caption)}</figcaption>\n{picture}</figure>" for caption, picture in drawn if picture]
    return '<div class="figures">\n' + "\n".join(shown) + "\n</div>" if shown else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,), colors: Sequence[str] = ()) -> str:
    """Numbers to the right, the columns in `left` to the left. `colors` puts a patch of colour before each row."""

    def cells(tag: str, row: Sequence[str], patch: str = "") -> str:
        kinds = [' class="words"' if index in left else "" for index in range(len(row))]
        words = [f"{patch if index == 0 else ''}{escape(cell)}" for index, cell in enumerate(row)]
        return "<tr>" + "".join(f"<{tag}{kind}>{word}</{tag}>" for kind, word in zip(kinds, words, strict=True)) + "</tr>"

    if not rows:
        return ""
    patches = [f'<span class="swatch" style="background:{color}"></span>' for color in colors] or [""] * len(rows)
    body = "\n".join(cells("td", row, patch) for row, patch in zip(rows, patches, strict=True))
    return f'<div class="scroll"><table>\n<thead>{cells("th", columns)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def preformatted(words: str) -> str:
    return f"<pre>{escape(words)}</pre>"


def check_place(path: Path) -> Path:
    """What keeps a file from being written there, said before the work for it is done."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} to write {path.name} into")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file to write")
    return path


def write(path: Path, document: str) -> Path:
    """The file appears whole or not at all."""
    replace_file(check_place(path), document.encode())
    return path
