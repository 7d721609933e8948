"""The entry of the command line: help, unknown words, and exit codes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import stepsnet
from stepsnet.cli import main as entry
from stepsnet.errors import UsageError

NAMES = [name for group in entry.COMMANDS.values() for name in group]


class Raising:
    """A command that only raises."""

    SUMMARY = DESCRIPTION = "raises"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=int)

    def run(self, args: argparse.Namespace) -> int:
        raise self.error


def shell(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stepsnet", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in NAMES if not any(line.startswith(f"  {name} ") for line in lines)] == []


def test_help_fits_a_terminal() -> None:
    assert max(map(len, entry.help_text().splitlines())) <= 120


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out == f"stepsnet {stepsnet.__version__}\n"


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["trian"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("stepsnet has no command 'trian'; nearest: train")


def test_unknown_option_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--verison"]) == 2
    assert "stepsnet has no option '--verison'" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        entry.main([name, "--help"])
    assert left.value.code == 0
    assert (
        f"stepsnet {name}" in capsys.readouterr().out.partition("\n\n")[2]
    )  # after the usage, which always names the command


@pytest.mark.parametrize("file", sorted(Path(entry.__file__).parent.glob("*.py")), ids=lambda file: file.stem)
def test_every_command_on_disk_is_in_the_table(file: Path) -> None:
    assert file.stem.replace("_", "-") in NAMES or "def run(args" not in file.read_text()


def test_usage_errors_are_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "load", lambda _: Raising(UsageError("The plan decreases.")))
    assert entry.main(["info"]) == 2
    assert capsys.readouterr().err == "The plan decreases.\n"


def test_a_wrong_argument_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "load", lambda _: Raising(AssertionError("never run")))
    assert entry.main(["info", "--count", "many"]) == 2
    said = capsys.readouterr().err
    assert said == "stepsnet info: argument --count: invalid int value: 'many' (see `stepsnet info --help`)\n"


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "load", lambda _: Raising(KeyboardInterrupt()))
    assert entry.main(["info"]) == 130


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "load", lambda _: Raising(ValueError("a defect")))
    with pytest.raises(ValueError, match="a defect"):
        entry.main(["info"])


def test_the_module_runs_like_the_script() -> None:
    finished = shell("--version")
    assert (finished.returncode, finished.stdout) == (0, f"stepsnet {stepsnet.__version__}\n")


def test_the_exit_code_reaches_the_shell() -> None:
    assert shell("nonsense").returncode == 2


def test_a_closed_pipe_is_not_an_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "stepsnet", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() in (0, 141)


def test_the_lock_of_another_user_is_named() -> None:
    error = PermissionError(13, "Permission denied", "runs/first/.tmp-lock")
    assert entry._describe(error) == "Cannot read or write runs/first/.tmp-lock: Permission denied."
