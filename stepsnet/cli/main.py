"""The entry of the command line: finds the command, runs it, and turns errors into exit codes.

A command has `SUMMARY`, `DESCRIPTION`, `add_arguments(parser)` and `run(args) -> exit code`. It is a module of this
package, or a class in the module of a related command. Commands import torch only when they run, so that
`stepsnet --help` is fast.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn, Protocol, cast

from stepsnet import __version__
from stepsnet.cli.console import columns, progress, say
from stepsnet.cli.help import HelpFormatter, fit_help
from stepsnet.errors import UsageError, nearest
from stepsnet.files import TEMPORARY
from stepsnet.units import megabytes

COMMANDS: dict[str, tuple[str, ...]] = {
    "Start here": ("demo",),
    "Models": ("models", "info", "plan", "explore", "analyze", "doctor", "reproduce"),
    "Other libraries": ("stepify", "deepen"),
    "Training": ("train", "resume", "eval", "predict", "runs"),
    "Language": ("prepare-text", "generate"),
    "Measurements": ("bench", "study"),
    "Deployment": ("export",),
    "Shell": ("completion",),
}
SHARED = {"info": ("models", "Info"), "resume": ("train", "Resume"), "deepen": ("stepify", "Deepen")}
"""Commands that are a class in another command's module."""

INTRODUCTION = """\
StepsNet makes residual networks deeper at the same cost. It replaces one stack of blocks by several stacks of growing
width. Each stack processes the output of the stack before it and some new input channels (arXiv 2511.14329)."""

EXAMPLES = """\
Examples:
  stepsnet demo                                            three networks of equal cost, compared in minutes
  stepsnet info deit_small --plan "192x12, 272x6, 384x6"   any model under any plan, drawn and counted
  stepsnet train cifar10 model=steps_resnet18 data.root=DIR out=runs/first"""

OUTPUT_CLOSED = 128 + 13  # as a shell reports a program whose reader (`| head`) has closed the pipe
INTERRUPTED = 128 + 2
MEMORY_ERRORS = ("can't allocate memory", "out of memory", "overflow")  # of torch, on CPU and GPU
PATH_ERRORS = (FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError, PermissionError)


class Command(Protocol):
    """What a command offers."""

    SUMMARY: str
    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as a `UsageError`."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see `{self.prog} --help`)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for a mistake of the user, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except UsageError as error:
        say(str(error))
        return 2
    except PATH_ERRORS as error:
        if error.filename is None:
            raise
        say(_describe(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        if (need := _needed_memory(error)) is None:
            raise
        say(need)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Else the interpreter reports it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    return code


def _needed_memory(error: Exception) -> str | None:
    """One sentence if memory was short, also if the size of a tensor is beyond 64 bits; else None."""
    words = str(error)
    if not isinstance(error, MemoryError) and not any(mark in words for mark in MEMORY_ERRORS):
        return None
    asked = re.search(r"allocate (\d+) bytes", words)
    need = f" for {megabytes(int(asked[1]))} at once" if asked else ""
    return f"There is not enough memory{need}; give a smaller batch, image size, length, plan or model."


def _describe(error: OSError) -> str:
    path = Path(os.fsdecode(error.filename))
    if path.name.startswith(TEMPORARY):  # the unfinished file; the user knows the name without prefix and number
        path = path.with_name(path.name.removeprefix(TEMPORARY).rpartition("-")[0] or path.name)
    above = next((parent for parent in path.parents if parent.is_file()), None)
    return f"Cannot read or write {path}: {f'{above} is a file' if above else error.strerror}."


def _dispatch(words: list[str]) -> int:
    first = words[0] if words else "--help"
    if first in ("-h", "--help"):
        print(help_text())
        return 0
    if first == "--version":
        print(f"stepsnet {__version__}")
        return 0
    known = [name for group in COMMANDS.values() for name in group]
    if first not in known:
        kind = "option" if first.startswith("-") else "command"
        raise UsageError(f"stepsnet has no {kind} {first!r}{nearest(first, known)} (see `stepsnet --help`)")
    command = load(first)
    parser = parser_of(first, command)
    args = parser.parse_intermixed_args(words[1:])  # `train digits --dry-run iters=3`, in any order
    watched = not sys.stderr.isatty() and os.environ.get("RANK", "0") == "0"
    with progress(f"stepsnet {first}", unit="") if watched else nullcontext():  # imports take seconds
        return command.run(args)


def load(name: str) -> Command:
    """The command `name`."""
    module, inside = SHARED.get(name, (name.replace("-", "_"), None))
    found = importlib.import_module(f"stepsnet.cli.{module}")
    return cast(Command, found if inside is None else getattr(found, inside)())


def parser_of(name: str, command: Command) -> Parser:
    """The parser of a command's arguments."""
    parser = Parser(
        prog=f"stepsnet {name}", description=command.DESCRIPTION, formatter_class=HelpFormatter, allow_abbrev=False
    )
    command.add_arguments(parser)
    return parser


def help_text() -> str:
    """The text of `stepsnet --help`."""
    groups = [
        "\n".join([f"{title}:", *(f"  {name:<14}{load(name).SUMMARY}" for name in names)])
        for title, names in COMMANDS.items()
    ]
    usage = "Usage: stepsnet COMMAND … (see `stepsnet COMMAND --help` and `stepsnet --version`)"
    return fit_help("\n\n".join([INTRODUCTION, usage, *groups, EXAMPLES]), columns())
