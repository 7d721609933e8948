"""The entry of the command line: finds the command, hands over, and turns what goes wrong into an exit code.

A command is a module of this room with `SUMMARY`, `DESCRIPTION`, `add_arguments(parser)` and `run(args) -> exit code`. It imports
torch only when it runs, so that `stepsnet --help` can ask every one of them for its summary and still answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol, cast

from stepsnet import __version__
from stepsnet.errors import UsageError, nearest

COMMANDS: dict[str, tuple[str, ...]] = {
    "See it": ("demo",),
    "Look at models": ("models", "info", "analyze", "doctor", "reproduce"),
    "Train": ("train", "resume", "eval", "predict", "runs"),
    "Language": ("prepare-text", "generate"),
    "Measure": ("bench", "study"),
    "Take it elsewhere": ("export",),
}

INTRODUCTION = """\
StepsNet makes residual networks deeper at the same cost: one stack of one width becomes several of growing width, each
working on the channels so far joined with the next ones (Step by Step Network, arXiv 2511.14329)."""

EXAMPLES = """\
Examples:
  stepsnet demo                                        see the claim with your own eyes, nothing to download
  stepsnet info deit_small --plan "192x12, 272x6, 384x6"   any model under any plan, drawn and counted
  stepsnet train cifar10 model=steps_resnet18 data.root=DIR out=runs/first"""

OUTPUT_CLOSED = 128 + 13  # what a shell reports for a program whose reader (`| head`) went away
INTERRUPTED = 128 + 2


class Command(Protocol):
    """What every module of a command offers."""

    SUMMARY: str
    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """Answers a wrong argument like every other mistake of the user: one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see `{self.prog} --help`)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for a mistake of the user, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except UsageError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains once more while leaving
        return OUTPUT_CLOSED
    return code


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
    parser = Parser(prog=f"stepsnet {first}", description=command.DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_arguments(parser)
    return command.run(parser.parse_intermixed_args(words[1:]))  # `train digits --dry-run iters=3`, in any order


def load(name: str) -> Command:
    """The module of the command `name`."""
    return cast(Command, importlib.import_module(f"stepsnet.cli.{name.replace('-', '_')}"))


def help_text() -> str:
    """What `stepsnet --help` says."""
    groups = ["\n".join([f"{title}:", *(f"  {name:<14}{load(name).SUMMARY}" for name in names)]) for title, names in COMMANDS.items()]
    usage = "Usage: stepsnet COMMAND …      `stepsnet COMMAND --help` explains a command, `stepsnet --version` says the version."
    return "\n\n".join([INTRODUCTION, usage, *groups, EXAMPLES])
