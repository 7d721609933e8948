"""The documentation site: it is built, is complete, and needs no network."""

from __future__ import annotations

import ast
import html.parser
import importlib
import inspect
import pkgutil
import re
import shutil
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import stepsnet
from tests.report.browser import NEEDS_CHROMIUM, SCHEMES, defects
from tools import site
from tools.figures import CHARTS, FOLDER
from tools.reference import api_pages, commands_page

ROOT = Path(__file__).parent.parent
FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class Page(html.parser.HTMLParser):
    """Links, anchors and fetched files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[key] for key in ("id", "name") if key in found}
        self.classes |= set(found.get("class", "").split())
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if FETCHED.get(tag, "") in found and found.get("rel") not in ("prev", "next", "canonical"):
            self.fetched.append(found[FETCHED[tag]])


def nav_pages(entry: Any) -> Iterator[str]:
    """The pages of a navigation, in order."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from nav_pages(part)


def test_the_navigation_has_every_page_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    reports = set((ROOT / "docs/results/evidence").glob("*/report.md"))  # of README's `study --report`; not in git
    written = {str(page.relative_to(ROOT / "docs")) for page in set((ROOT / "docs").rglob("*.md")) - reports}
    pages = list(nav_pages(config["project"]["nav"]))
    assert sorted(pages) == sorted(written | {"reference/api/index.md", "reference/commands.md"})


def test_the_notebook_is_the_tutorial() -> None:
    page = ROOT / "docs" / site.TUTORIAL
    text = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == site.notebook_text(page.read_text(encoding="utf-8")), "run `make docs`"


def test_a_notebook_has_the_code_and_the_text_of_its_page() -> None:
    cells = site.notebook("# Title\n\n```python\nx = 1\n```\n\ntext\n\n```sh\nls\n```\n")["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [
        ("markdown", "# Title"), ("code", "x = 1"), ("markdown", "text\n\n```sh\nls\n```"),
    ]  # fmt: skip


def public_names() -> Iterator[tuple[str, str, Any]]:
    for found in [stepsnet.__name__, *(f.name for f in pkgutil.walk_packages(stepsnet.__path__, "stepsnet."))]:
        package = importlib.import_module(found) if "__main__" not in found and ".cli" not in found else None
        if package is not None and hasattr(package, "__path__"):
            for name in getattr(package, "__all__", ()):
                yield found, name, getattr(package, name)


def has_docstring(value: Any) -> bool:
    """Whether a class, or one of ours that it derives from, or a function has a docstring that a person wrote."""
    if inspect.isclass(value):
        ours = [kind for kind in value.__mro__ if kind.__module__.startswith("stepsnet")]
        return any(kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(") for kind in ours)
    return bool(value.__doc__) if inspect.isfunction(value) else True


def test_the_reference_has_every_public_name_and_all_have_a_docstring() -> None:
    pages = api_pages()
    names = [(home, name, value) for home, name, value in public_names() if name != "__version__"]
    assert len(names) > 80
    assert [f"{home}.{name}" for home, name, _ in names if f"{{ #{name} }}" not in pages[f"{home}.md"]] == []
    undescribed = [f"{home}.{name}" for home, name, value in names if not has_docstring(value)]
    assert undescribed == []


def test_the_reference_has_the_names_in_modules_of_all_packages() -> None:
    text = "\n".join(api_pages().values())
    folders = (
        "analysis", "blocks", "data", "dense", "export", "macro", "models", "planner", "report", "runs", "surgery",
        "tasks", "train",
    )  # fmt: skip
    missing = [
        f"{file.relative_to(ROOT)}: {part.name}"
        for folder in folders
        for file in (ROOT / "stepsnet" / folder).rglob("*.py")
        for part in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(part, ast.ClassDef | ast.FunctionDef)
        and not part.name.startswith("_")
        and f"- `{part.name}`:" not in text
        and f"{{ #{part.name} }}" not in text
    ]
    assert missing == []


def test_the_commands_are_in_the_reference() -> None:
    from stepsnet.cli.main import COMMANDS

    page = commands_page()
    assert [name for names in COMMANDS.values() for name in names if f"usage: stepsnet {name} " not in page] == []


@pytest.mark.parametrize("name", ["plan", "cost"])
def test_the_exact_figures_are_as_drawn(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == CHARTS[name]().document(), "run `python -m tools.figures`"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.stage(folder / "build" / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    assert site.build(folder) == 0
    return folder / "build" / "site"


@NEEDS_CHROMIUM
@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_page_of_each_kind_fits_a_phone_and_a_desktop(built: Path, scheme: str) -> None:
    shown = ("index", "tutorial", "concepts/gamma", "how-to/timm", "reference/commands", "results/surgery")
    assert defects(built, [f"{name}.html" for name in shown], scheme) == {}


def test_the_site_is_whole_and_fetches_nothing(built: Path) -> None:
    page = cache(Page)
    broken, outside = [], []
    for path in built.rglob("*.html"):
        if path.name == "404.html":
            continue  # its links are of the server's root
        where = str(path.relative_to(built))
        outside += [(where, url) for url in page(path).fetched if re.match(r"(\w+:)?//", url)]
        outside += [(where, "mermaid")] * ("mermaid" in page(path).classes)  # its script would come from the web
        for link in [*page(path).links, *page(path).fetched]:
            name, anchor = urldefrag(unquote(link))
            target = (path.parent / name).resolve() if name else path
            if re.match(r"\w+:|//", link):
                continue
            found = target.exists() and (not anchor or target.suffix != ".html" or anchor in page(target).anchors)
            broken += [] if found else [(where, link)]
    assert outside == []
    assert broken == []
    sheets = "".join(sheet.read_text(encoding="utf-8") for sheet in built.rglob("*.css"))
    assert re.findall(r"""url\(["']?(?:https?:)?//""", sheets) == []
