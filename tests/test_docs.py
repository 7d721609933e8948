"""README and docs: Python blocks run, README's commands run, links lead to files, the model table has the counted
numbers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepsnet.cli.main import main
from stepsnet.models.registry import VARIANTS
from tools import evidence

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]
ROWS = re.findall(r"`([a-z0-9_]+)` \| (\d+) / (\d+) \| ([\d.]+ [MG]) \| ([\d.]+ [MG])", README)


TEXTS = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
}
UPSTREAM = "docs/reference/upstream/"  # its blocks crash the interpreter: that is what the reports are about
BLOCKS = {
    page: blocks
    for page, text in TEXTS.items()
    if not page.startswith(UPSTREAM) and (blocks := re.findall(r"```python\n(.*?)```", text, re.DOTALL))
}


@pytest.fixture
def registry() -> Iterator[None]:
    """Models that a page registers are forgotten after it."""
    known = dict(VARIANTS)
    yield
    VARIANTS.clear()
    VARIANTS.update(known)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("page", BLOCKS)
def test_python_blocks_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, code in enumerate(BLOCKS[page]):
        exec(compile(code, f"{page}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", evidence.PAGES, ids=lambda page: page.name)
def test_results_of_studies_are_those_of_the_committed_cells(page: Path) -> None:
    """If not: `python -m tools.evidence` writes them."""
    text = page.read_text(encoding="utf-8")
    assert evidence.filled(text) == text


def test_a_page_shows_every_study_with_committed_cells() -> None:
    tables = re.findall(r"<!-- study: (\w+) (\w+) .*table", "".join(TEXTS.values()))
    committed = {cells.parent.name for cells in evidence.EVIDENCE.glob("*/results.jsonl")}
    assert {"-".join(names) for names in tables} == committed


def test_losses_in_the_readme_are_those_of_the_studies() -> None:
    losses = re.compile(r"\d\.\d{3} ± \d\.\d{3}")
    readme, *studies = (page.read_text(encoding="utf-8") for page in evidence.PAGES)
    assert set(losses.findall(readme)) <= set(losses.findall("".join(studies)))


@pytest.mark.parametrize("function", ["stepify", "deepen", "plan"])
def test_every_function_of_the_surgery_has_a_page_that_calls_it(function: str) -> None:
    assert any(f"stepsnet.{function}(" in code for code in BLOCKS[f"docs/how-to/{function}.md"])


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXTS[page])  # the site's links are checked in test_site.py
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("stepsnet")])
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {line.split()[1] for line in COMMANDS if line.startswith("make")} <= targets


def test_the_model_table_has_the_counted_numbers() -> None:
    from stepsnet.cli.console import format_cost
    from stepsnet.cli.models import describe

    assert len(ROWS) >= 18
    for name, *cells in ROWS:
        assert cells == format_cost(describe(name)), name


def test_the_tree_names_the_packages_that_exist() -> None:
    tree = README.split("## Where things are")[1]
    named = set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "stepsnet").glob("*/__init__.py")}
    assert named == packages


def test_the_reference_of_keys_is_that_of_the_command_line() -> None:
    from stepsnet.cli.train import keys_page

    write = "from stepsnet.cli.train import keys_page as p; open('docs/reference/keys.md', 'w').write(p())"
    assert (ROOT / "docs/reference/keys.md").read_text(encoding="utf-8") == keys_page(), f'python -c "{write}"'
