"""`stepsnet explore`."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from stepsnet.cli.console import say

SUMMARY = "write a page to choose a plan by hand: drag steps and see their cost"
DESCRIPTION = """\
Writes one HTML page that needs no network. It shows any registered model, or a model of transformers whose config.json
you paste. Drag the width and depth of each step: the page counts blocks, layers, parameters, MACs, KV cache and
activation memory as Python does. A budget can be kept constant while you drag. The result can be copied as Python, as a
command or as JSON. The page's URL stores it.

  stepsnet explore                          writes stepsnet-explorer.html
  stepsnet explore --out plans.html --open  writes the file and opens it in the browser"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Path("stepsnet-explorer.html")
    parser.add_argument("--out", type=Path, default=default, help=f"the file to write (default: {default})")
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run(args: argparse.Namespace) -> int:
    from stepsnet.report.explorer import explorer_page
    from stepsnet.report.html import write

    path = write(args.out, explorer_page()).resolve()
    print(path)
    if args.open and not webbrowser.open(path.as_uri()):
        say("No browser was found; open the file yourself.")
    return 0
