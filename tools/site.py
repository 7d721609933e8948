"""Build the documentation site into build/site: `python -m tools.site`, or `make docs`.

The pages of docs/ are copied to build/docs. Beside them are written the reference (from docstrings and `--help`), the
notebook of the tutorial and the explorer. Zensical makes HTML of all, as zensical.toml says. Nothing is downloaded, and
the site needs neither a server nor a network: open build/site/index.html.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from stepsnet.report.explorer import explorer_page
from tools.reference import api_pages, commands_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BUILD = ROOT / "build"
TUTORIAL = "tutorial.md"
EXPLORER = "explorer.html"


def notebook(page: str) -> dict[str, Any]:
    """A Jupyter notebook (format 4.4) of a page: its ```python blocks are code cells, all else is text."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)^```\n", page, flags=re.DOTALL | re.MULTILINE)):
        source = part.strip("\n").splitlines(keepends=True)
        if not source:
            continue
        code: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append((code if number % 2 else {"cell_type": "markdown"}) | {"metadata": {}, "source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


def notebook_text(page: str) -> str:
    return json.dumps(notebook(page), ensure_ascii=False, indent=1) + "\n"


def stage(folder: Path) -> None:
    """Write all pages of the site into `folder`, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    (folder / "reference" / "api").mkdir()
    for name, text in api_pages().items():
        (folder / "reference" / "api" / name).write_text(text, encoding="utf-8")
    (folder / "reference" / "commands.md").write_text(commands_page(), encoding="utf-8")
    (folder / EXPLORER).write_text(explorer_page(), encoding="utf-8")


def build(folder: Path) -> int:
    """Make HTML of `folder`/build/docs as `folder`/zensical.toml says; returns the exit code."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, check=False).returncode


def main() -> int:
    page = (DOCS / TUTORIAL).read_text(encoding="utf-8")
    (DOCS / TUTORIAL).with_suffix(".ipynb").write_text(notebook_text(page), encoding="utf-8")
    stage(BUILD / "docs")
    code = build(ROOT)
    if code == 0:
        print(f"The site is in {BUILD / 'site'}: open index.html there.")
    return code


if __name__ == "__main__":
    sys.exit(main())
