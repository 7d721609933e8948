"""Completion scripts: bash reads them and offers what the parsers take."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from stepsnet.cli.completion import words_of
from stepsnet.cli.main import COMMANDS, main
from stepsnet.train.recipes import RECIPES


@pytest.fixture(scope="module")
def script() -> str:
    from stepsnet.cli.completion import bash, words_of

    return bash({name: words_of(name) for names in COMMANDS.values() for name in names})


@pytest.fixture
def complete(script: str) -> Callable[[str], list[str]]:
    """What bash offers for a line that ends where the cursor is."""

    def offered(line: str) -> list[str]:
        words = " ".join(f"'{word}'" for word in line.split(" "))
        ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _stepsnet; echo ${{COMPREPLY[@]}}"
        bash = ["bash", "-c", f"{script}\n{ask}"]
        done = subprocess.run(bash, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("stepsnet pre", ["predict", "prepare-text"]),
        ("stepsnet --v", ["--version"]),
        ("stepsnet doctor --st", ["--strict"]),
        ("stepsnet info --join mat", ["matched_grad"]),
        ("stepsnet bench me", ["memory"]),
        ("stepsnet info steps_deit_ti", ["steps_deit_tiny"]),
        ("stepsnet train digi", ["digits"]),
        ("stepsnet completion ", ["-h", "--help", "bash", "zsh", "fish"]),
        ("stepsnet eval no-such", []),
    ],
)
def test_bash_offers_what_fits(complete: Callable[[str], list[str]], line: str, offered: list[str]) -> None:
    assert complete(line) == offered


def test_bash_offers_all_commands_and_recipes(complete: Callable[[str], list[str]]) -> None:
    assert complete("stepsnet ") == [*(name for names in COMMANDS.values() for name in names), "--help", "--version"]
    assert set(RECIPES) < set(complete("stepsnet train "))


def test_zsh_reads_the_script_of_bash(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == "autoload -U bashcompinit && bashcompinit\n" + script


def test_fish_knows_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [name for line in lines for name in re.findall(r"use_subcommand -f -a (\S+) -d", line)]
    assert commands == [name for names in COMMANDS.values() for name in names]
    (join,) = [line for line in lines if "from info'" in line and "-l join" in line]
    assert "-x -a 'plain matched_grad" in join
    if shutil.which("fish"):
        subprocess.run(["fish", "--no-execute"], input="\n".join(lines), text=True, check=True)


@pytest.mark.parametrize(
    ("command", "option", "value"), [("train", "--track", "mlflow"), ("prepare-text", "--errors", "replace")]
)
def test_values_that_a_help_lists_are_completed(command: str, option: str, value: str) -> None:
    assert value in words_of(command).options[option][1]
