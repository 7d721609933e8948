"""How figures and tables look on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDE = 1000  # columns of a line in a file or a pipe


def million(count: float) -> str:
    return f"{count / 1e6:.2f} M" if count < 1e9 else f"{count / 1e9:.2f} G"


def format_cost(figures: Mapping[str, Any]) -> list[str]:
    """Blocks, layers, parameters, MACs."""
    return [str(figures["blocks"]), str(figures["layers"]), million(figures["params"]), million(figures["macs"])]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,), title: str | None = None) -> None:
    """Numbers to the right, the columns in `left` to the left; where nobody watches, cells are never cut or folded."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from stepsnet.cli.console import console

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        words = index in left
        table.add_column(column, justify="left" if words else "right", no_wrap=not words or not console.is_terminal, overflow="fold")
    for row in rows:
        table.add_row(*row)
    (console if console.is_terminal else Console(width=WIDE, highlight=False)).print(table)
