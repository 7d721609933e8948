"""The one look of all pages: a self-contained HTML file with one style sheet, for light and dark, desktop and phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.errors import UsageError
from stepsnet.files import check_writable, replace_file
from stepsnet.report.svg import COLOR_STYLE, COLORS

if TYPE_CHECKING:
    from stepsnet.report.chart import Chart


def _variables(at: int) -> str:
    return " ".join(f"--{name}: {COLORS[name][at]};" for name in ("paper", "ink", "faint", "grid", "panel"))


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(0)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}
{COLOR_STYLE}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }}
main {{ max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }}
h1 {{ font-size: 25px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }}
h2 {{ font-size: 18px; margin: 34px 0 8px; border-top: 1px solid var(--grid); padding-top: 18px; }}
p {{ max-width: 74ch; margin: 8px 0; }}
.lead {{ color: var(--faint); overflow-wrap: anywhere; }}
.verdict {{ font-size: 17px; font-weight: 600; margin: 14px 0; }}
.facts {{ display: flex; flex-wrap: wrap; gap: 10px; margin: 14px 0 0; }}
.facts div {{ background: var(--panel); border-radius: 6px; padding: 8px 14px; }}
.facts dt {{ color: var(--faint); font-size: 13px; }}
.facts dd {{ margin: 0; font-size: 18px; font-weight: 600; font-variant-numeric: tabular-nums; }}
.finding {{ border-left: 4px solid; padding: 2px 0 2px 16px; margin: 16px 0; }}
.finding > * {{ color: var(--ink); }}
.figures {{ display: flex; flex-wrap: wrap; gap: 22px 28px; align-items: flex-start; }}
figure {{ margin: 0; max-width: min(100%, 500px); }}
figcaption {{ margin: 6px 0 4px; }}
figcaption b {{ font-weight: 600; }}
figcaption span {{ display: block; color: var(--faint); font-size: 13px; }}
/* A shade at the side where a table goes on: the first two layers scroll with the table and cover it at its ends. */
.scroll {{ overflow-x: auto; background:
  linear-gradient(90deg, var(--paper) 30%, transparent) 0 0 / 40px 100% no-repeat local,
  linear-gradient(270deg, var(--paper) 30%, transparent) 100% 0 / 40px 100% no-repeat local,
  linear-gradient(90deg, var(--grid), transparent) 0 0 / 16px 100% no-repeat scroll,
  linear-gradient(270deg, var(--grid), transparent) 100% 0 / 16px 100% no-repeat scroll; }}
table {{ border-collapse: collapse; margin: 10px 0; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; font-weight: 600; }}
/* The title stays where it is while a wide table scrolls under it. */
caption span {{ display: inline-block; position: sticky; left: 0; max-width: min(74ch, calc(100vw - 40px)); }}
th, td {{ padding: 5px 14px 5px 0; text-align: left; border-bottom: 1px solid var(--grid); vertical-align: top; }}
th {{ color: var(--faint); font-weight: 600; vertical-align: bottom; }}
.number, .right {{ text-align: right; }}
td.number, td.name {{ white-space: nowrap; }}
td.text {{ min-width: 18ch; }}
pre {{ background: var(--panel); margin: 8px 0; padding: 12px 14px; overflow-x: auto; font: 13px/1.4 monospace; }}
summary {{ cursor: pointer; font-weight: 600; }}
.command {{ position: relative; }}
.command pre {{ padding-right: 74px; white-space: pre-wrap; overflow-wrap: anywhere; }}
button {{ position: absolute; top: 8px; right: 8px; font: inherit; font-size: 12px; cursor: pointer; color: var(--ink);
  background: var(--paper); border: 1px solid var(--grid); border-radius: 4px; padding: 2px 8px; }}
.swatch {{ display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 7px;
  background: currentColor; }}
"""
COPY = """<script>
for (const button of document.querySelectorAll(".command button")) button.onclick = async () => {
  const source = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {  // where the browser does not let a page write to the clipboard
    getSelection().selectAllChildren(source);
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
};
</script>
"""


def page(
    title: str, lead: str, sections: Sequence[str], *, verdict: str = "", color: str = "ink",
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """A document from sections in HTML. The header has the verdict in `color` and the key numbers (name, value)."""
    body = "\n".join(filter(None, sections))
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    header = [f"<h1>{escape(title)}</h1>", f'<p class="lead">{escape(lead)}</p>']
    header += [f'<p class="verdict {color}">{escape(verdict)}</p>'] if verdict else []
    header += [f'<dl class="facts">{tiles}</dl>'] if tiles else []
    inside = "\n".join(header)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n{inside}\n</header>\n{body}\n</main>\n"
        f"{COPY if '<button' in body else ''}</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and its content; "" where there is no content."""
    shown = [part for part in parts if part]
    return "\n".join([f"<h2>{escape(title)}</h2>", *shown]) if shown else ""


def collapsed(title: str, content: str) -> str:
    """Preformatted text behind a heading to click on; "" for no text."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(content)}</pre></details>" if content else ""


def paragraph(words: str) -> str:
    return f"<p>{escape(words)}</p>"


def figures(*charts: Chart) -> str:
    """Charts side by side, each under its title and note; a chart without data is left out."""
    shown = []
    for chart in charts:
        if drawn := chart.element():
            note = f"<span>{escape(chart.note)}</span>" if chart.note else ""
            shown.append(f"<figure><figcaption><b>{escape(chart.title)}</b>{note}</figcaption>\n{drawn}</figure>")
    return '<div class="figures">\n' + "\n".join(shown) + "\n</div>" if shown else ""


def command(words: str) -> str:
    """A command with a button that copies it; "" for none."""
    return f'<div class="command"><pre>{escape(words)}</pre><button type="button">Copy</button></div>' if words else ""


def check_place(path: Path) -> Path:
    """The path, or an error if no file can be written there: to call before the work whose result it will hold."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} to write {path.name} into")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file to write")
    check_writable(path)
    return path


def write(path: Path, document: str) -> Path:
    """Write the file; it appears complete or not at all."""
    replace_file(check_place(path), document.encode())
    return path
