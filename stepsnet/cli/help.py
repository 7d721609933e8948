"""How the texts of `--help` fit the terminal."""

from __future__ import annotations

import argparse
import re

from stepsnet.cli.console import columns, fit

EXAMPLE = ("  stepsnet ", "  torchrun ")


class HelpFormatter(argparse.HelpFormatter):
    """Uses the width of a table, and keeps the examples of a description."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns())

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  # a description has no indent
        return fit_help(text, width)


def fit_help(text: str, width: int) -> str:
    """Paragraphs, lists ("  name  explanation") and examples ("  command  comment") in lines of `width`.

    In the text a paragraph has no indent; the further lines of a list's item have more than its first.
    """
    parts: list[str] = []
    for line in text.split("\n"):
        goes_on = bool(line and parts and parts[-1]) and (
            _indent(line) == _indent(parts[-1]) == 0 or _indent(line) > _indent(parts[-1]) > 0
        )
        parts[-1:] = [f"{parts[-1]} {line.strip()}"] if goes_on else [*parts[-1:], line]
    return "\n".join(_fit_example(part, width) if part.startswith(EXAMPLE) else fit(part, width) for part in parts)


def _fit_example(line: str, width: int) -> str:
    """A line that is too long: first the command, continued as in a shell, and below it the comment."""
    if len(line) <= width:
        return line
    indent = " " * _indent(line)
    command, *comment = re.split(" {2,}", line.strip(), maxsplit=1)
    lines = [""]
    for word in re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", command):
        if lines[-1] and len(indent) + len(lines[-1]) + 1 + len(word) + len(" \\") > width:
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    shown = " \\\n".join(indent + each for each in lines)
    return shown + ("\n" + fit(f"{indent}    #  {comment[0]}", width) if comment else "")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
