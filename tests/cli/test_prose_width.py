"""Prose and help fit the terminal; only a word or a command to copy may be wider."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

from stepsnet.cli.console import fit, print_text, say
from stepsnet.cli.help import fit_help
from stepsnet.cli.main import COMMANDS, load, main, parser_of
from stepsnet.report.table import cell_width

COMMAND = ("    stepsnet ", "    stepsnet.")  # what the doctor recommends
NAMES = [name for group in COMMANDS.values() for name in group]


@pytest.fixture(params=[60, 80])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.chdir(tmp_path)
    return int(request.param)


def too_wide(text: str, width: int) -> list[str]:
    lines = [line for line in text.splitlines() if cell_width(line) > width]
    return [line for line in lines if len(line.split()) > 1 and not line.startswith(COMMAND)]


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits(name: str, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main([name, "--help"] if name else ["--help"])
    said = capsys.readouterr().out
    assert "stepsnet" in said
    assert too_wide(said, width) == []


@pytest.mark.parametrize("name", ["", *NAMES])
@pytest.mark.usefixtures("width")
def test_the_examples_of_a_help_can_be_copied(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main([name, "--help"] if name else ["--help"])
    whole = re.sub(r" \\\n +", " ", capsys.readouterr().out)
    examples = re.findall(r"^  (?:torchrun .*)?stepsnet (\S.*?)(?:  .*)?$", whole, re.MULTILINE)
    assert examples
    for example in examples:
        command, *words = shlex.split(example.partition(" > ")[0])
        parser_of(command, load(command)).parse_intermixed_args(words)


@pytest.mark.parametrize(
    "command",
    [
        "info swin_tiny",
        "plan test_swin",
        "analyze gamma test_steps_deit --plot gamma.svg",
        "analyze gradients test_steps_deit",
        "analyze contribution test_steps_deit",
        "analyze width test_steps_deit",
        "doctor test_steps_deit",
        "train",
        "train digits --dry-run",
        "train coco_mask_rcnn --dry-run data.root=.",
        "train digits model=nope",
        "bench speed test_deit test_steps_deit --rounds 7 --batch 1 --mode inference training",
        "bench depth test_deit --depths 2 4 --widths --rounds 7 --batch 1",
        "export test_resnet --format torch-export",
    ],
)
def test_output_fits(
    command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepsnet.research.bench.timing.PEAK_SIZES", (16,))
    main(shlex.split(command))
    said = capsys.readouterr()
    assert said.out or said.err
    assert too_wide(said.out + said.err, width) == []


def test_a_message_in_a_log_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 60)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_wrapped_explanation_stands_below_its_beginning() -> None:
    assert fit("data    three words here\nshort", 20) == "data    three words\n        here\nshort"


@pytest.mark.parametrize("spaces", ["  ", "   "])
def test_an_example_that_is_too_long_is_still_one_command(spaces: str) -> None:
    whole = '  stepsnet generate RUN --prompt "a dark night" --seed 7'
    *command, comment = fit_help(f"{whole}{spaces}twice the same text", 40).split("\n")
    assert comment == "      #  twice the same text"
    assert max(map(len, command)) <= 40
    assert shlex.split("\n".join(command).replace("\\\n", "")) == shlex.split(whole)


@pytest.mark.parametrize("name", NAMES)
def test_wide_help_has_the_words_of_the_description(name: str) -> None:
    description = load(name).DESCRIPTION
    assert fit_help(description, 120).split() == description.split()


def test_the_title_of_a_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["reproduce", "table8"]) == 0
    assert max(map(cell_width, capsys.readouterr().out.splitlines())) <= 80


def test_a_paragraph_keeps_its_indent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    print_text("  one two three four")
    assert capsys.readouterr().out == "  one two\n  three four\n"
