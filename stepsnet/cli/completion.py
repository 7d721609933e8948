"""`stepsnet completion bash|zsh|fish`: a script that completes commands, options and their values, and names."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from stepsnet.cli.main import COMMANDS, load, parser_of
from stepsnet.cli.models import COSTS
from stepsnet.train.recipes import RECIPES

SUMMARY = "print a script that completes commands and options in bash, zsh or fish"
DESCRIPTION = """\
Prints a script for the shell. It completes commands, options, their values, models, recipes and files.

  source <(stepsnet completion bash)                                        in ~/.bashrc
  source <(stepsnet completion zsh)                                         in ~/.zshrc, after compinit
  stepsnet completion fish > ~/.config/fish/completions/stepsnet.fish"""

BASH = """\
_stepsnet() {{
  local words="" current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={commands}
  else
    case "${{COMP_WORDS[1]}} $before" in
{values}
    *) case "${{COMP_WORDS[1]}}" in
{options}
      esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _stepsnet stepsnet
"""


@dataclass(frozen=True)
class Words:
    """What can follow a command: options with their help and values, and names for its arguments."""

    options: dict[str, tuple[str, list[str]]]
    names: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that will read the script")


def run(args: argparse.Namespace) -> int:
    commands = {name: words_of(name) for names in COMMANDS.values() for name in names}
    if args.shell == "fish":
        print(fish(commands), end="")
    else:
        print("autoload -U bashcompinit && bashcompinit\n" * (args.shell == "zsh") + bash(commands), end="")
    return 0


def words_of(name: str) -> Words:
    """What can follow the command `name`, read from its parser."""
    options: dict[str, tuple[str, list[str]]] = {}
    names: list[str] = []
    for action in parser_of(name, load(name))._actions:  # argparse has no other way to list them
        choices = [str(choice) for choice in action.choices or ()]
        if isinstance(action.metavar, str) and "|" in action.metavar:
            choices = action.metavar.split("|")
        options |= dict.fromkeys(action.option_strings, (action.help or "", choices))
        if not action.option_strings:
            names += choices or _known(name, action.dest)
    return Words(options, names)


def _known(command: str, argument: str) -> list[str]:
    """The names that an argument takes besides paths: recipes, or registered models."""
    if argument == "recipe":
        return list(RECIPES)
    registered = argument in ("model", "models") and command not in ("stepify", "deepen")
    if not registered and command != "info":
        return []
    return [model["name"] for model in json.loads(COSTS.read_text(encoding="utf-8"))]


def bash(commands: dict[str, Words]) -> str:
    """The script for bash, which zsh understands too."""
    values = [
        f"    {shlex.quote(f'{name} {option}')}) words={_quoted(choices)} ;;"
        for name, words in commands.items()
        for option, (_, choices) in words.options.items()
        if choices
    ]
    options = [f"      {name}) words={_quoted([*words.options, *words.names])} ;;" for name, words in commands.items()]
    known = _quoted([*commands, "--help", "--version"])
    return BASH.format(commands=known, values="\n".join(values), options="\n".join(options))


def fish(commands: dict[str, Words]) -> str:
    """The script for fish, with descriptions."""
    lines = []
    for name, words in commands.items():
        about = shlex.quote(load(name).SUMMARY)
        lines.append(f"complete -c stepsnet -n __fish_use_subcommand -f -a {name} -d {about}")
        here = f"complete -c stepsnet -n '__fish_seen_subcommand_from {name}'"
        for option, (text, choices) in words.options.items():
            value = f" -x -a {_quoted(choices)}" if choices else ""
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"{here} {flag}{value} -d {shlex.quote(text)}")
        lines += [f"{here} -a {_quoted(words.names)}"] if words.names else []
    return "\n".join(lines) + "\n"


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))
