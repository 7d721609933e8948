"""What the README shows is what happens: its Python runs, its commands run, its table is the counted one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stepsnet.cli.main import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.split("#")[0].strip() for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
ROWS = re.findall(r"`([a-z0-9_]+)` \| (\d+) / (\d+) \| ([\d.]+ [MG]) \| ([\d.]+ [MG])", README)


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert "Cost(blocks=24, layers=122" in capsys.readouterr().out


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("stepsnet")])
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {line.split()[1] for line in COMMANDS if line.startswith("make")} <= targets


def test_the_table_of_models_is_the_counted_one() -> None:
    from stepsnet.cli.models import describe
    from stepsnet.cli.numbers import format_cost

    assert len(ROWS) >= 40
    for name, *cells in ROWS:
        assert cells == format_cost(describe(name)), name


def test_the_tree_names_the_rooms_that_exist() -> None:
    tree = README.split("## Where things are")[1]
    named = set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    rooms = {path.parent.name for path in (ROOT / "stepsnet").glob("*/__init__.py")}
    assert named == rooms
