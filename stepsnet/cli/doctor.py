"""`stepsnet doctor MODEL_OR_RUN`."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import columns, fit, print_json, print_table, print_text, progress
from stepsnet.cli.options import refuse, seed
from stepsnet.cli.resolve import load_with_inputs, resolve
from stepsnet.report.table import Column, Table

if TYPE_CHECKING:
    from stepsnet.analysis.doctor import Diagnosis
    from stepsnet.integrations.foreign import Loaded

SUMMARY = "examine a model or a run: shortcut, gradients, depth, joins, and what to change"
DESCRIPTION = """\
Measures a model and reports where its shortcut degrades, where gradients vanish or explode, whether its depth and
width are used, and what to change. Each finding has a number, the rule it breaks and advice; most have a command or a
line of Python. A run is measured on its own validation data, and its training curve is checked too; anything else is
measured on random inputs.
In the table, ‖∂L/∂y‖ is over the channels of the block's output y; `stepsnet analyze gradients` has ‖∂L/∂z_l‖, over
the whole state. L is the loss of the run; of a model, a random projection of its outputs, while `analyze gradients`
takes the cross-entropy against random classes.

  stepsnet doctor runs/first                     a run, finished or not
  stepsnet doctor runs/first --html doctor.html  with figures, in one file
  stepsnet doctor steps_deit_tiny                a model as it is initialised
  stepsnet doctor weights.safetensors            a saved one
  stepsnet doctor timm:vit_tiny_patch16_224      a model of timm, as initialised
  stepsnet doctor hf:gpt2                        a model of transformers, as initialised; hf:FOLDER with its weights

Exits with 0; with --strict, exits with 1 if there are warnings or severe findings."""

SHOWN_BLOCKS = 16
STYLES = {"severe": "bold red", "warning": "bold yellow", "note": "bold"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="a name of `stepsnet models`, a run's folder, a saved file, timm:NAME or hf:FOLDER_OR_TYPE")
    add("--html", metavar="FILE", help="write a self-contained page with figures there")
    add("--json", action="store_true", help="print one object instead of text")
    add("--seed", type=seed, metavar="N", help="random seed for initial weights and random inputs (default: 0)")
    add("--strict", action="store_true", help="exit with 1 if there are warnings or severe findings")


def run(args: argparse.Namespace) -> int:
    from stepsnet.report.analysis import write_doctor_page
    from stepsnet.report.html import check_place

    if args.html:
        check_place(Path(args.html))
    named = resolve(args.model)
    folder = named.path if named.kind == "run" else None
    if folder is not None:
        refuse(args, "seed", because=f"has no effect on {folder}: the run's weights and data are not random")
    with progress("examining", 2, "parts") as bar:
        loaded = load_with_inputs(args.model, args.seed or 0)
        bar.advance(note="measuring")
        diagnosis, curves = examine(loaded, folder)
        bar.advance()
    document = diagnosis.to_json()
    if args.html:
        write_doctor_page(Path(args.html), document, curves)
    if args.json:
        print_json(document)
    else:
        _print(diagnosis, loaded.trained)
        if args.html:
            print_text(f"Figures and every block: {args.html}")
    return 1 if args.strict and not diagnosis.healthy else 0


def examine(loaded: Loaded, folder: Path | None) -> tuple[Diagnosis, dict[str, list[dict[str, Any]]]]:
    """The diagnosis of a model, or of the run in `folder`, and the lines of the run's files."""
    from stepsnet.analysis.doctor import diagnose
    from stepsnet.analysis.doctor.curves import check_curves
    from stepsnet.analysis.doctor.measure import traits_of
    from stepsnet.runs.folder import read_lines
    from stepsnet.train.config import read_config

    def advise(changes: Mapping[str, str]) -> str:
        return _for_model(loaded, changes) if folder is None else _for_run(folder, changes)

    clip = 0.0 if folder is None else read_config(folder).optim.clip
    diagnosis = diagnose(
        loaded.model, *loaded.inputs, loss=loaded.loss, name=loaded.name, weights=loaded.weights, data=loaded.data,
        trained=loaded.trained, clip=clip, advise=advise,
    )  # fmt: skip
    if folder is None:
        return diagnosis, {}
    curves = {name: read_lines(folder / f"{name}.jsonl") for name in ("metrics", "eval", "gamma")}
    lines = (curves["metrics"], curves["eval"], curves["gamma"])
    more = check_curves(*lines, clip=clip, traits=traits_of(loaded.model))
    return diagnosis.with_findings(more, advise), curves


def _for_run(folder: Path, changes: Mapping[str, str]) -> str:
    """The command that repeats the run with `changes`; keys that the run itself had changed from its recipe stay."""
    from stepsnet.files import read_json
    from stepsnet.runs.folder import ENVIRONMENT
    from stepsnet.train.config import read_config
    from stepsnet.train.recipes import RECIPES, get_recipe
    from stepsnet.train.typed import flat, to_dict

    config = read_config(folder)
    names = {"clip": "optim.clip"} | {key: f"model_args.{key}" for key in ("residual", "embed_dim", "depth", "depths")}
    lower = f"{config.lr / 3:.2g}"  # for lr, which comes without a value
    new = {names.get(key, key): value or lower for key, value in changes.items()}
    if config.recipe not in RECIPES:
        return "with " + " ".join(f"{key}={value}" for key, value in new.items())
    usual, own = flat(to_dict(get_recipe(config.recipe))), flat(to_dict(config))
    implied = ["out", "recipe", "epochs" if config.epochs is None else "iters"]  # one length replaces the other
    changed = {key: value for key, value in own.items() if key not in implied and usual.get(key) != value}
    kept = {key: "none" if value is None else value for key, value in changed.items()}
    processes = read_json(folder / ENVIRONMENT).get("processes", 1)
    start = "stepsnet" if config.parallel == "none" else f"torchrun --nproc-per-node {processes} -m stepsnet"
    words = (f"{key}={_in_shell(value)}" for key, value in (kept | new).items())
    return " ".join([start, "train", config.recipe, *words])


def _in_shell(value: Any) -> str:
    """A word for a shell, in double quotes if it needs them."""
    word = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return word if shlex.quote(word) == word else '"' + re.sub(r'([\\"$`])', r"\\\1", word) + '"'


def _for_model(loaded: Loaded, changes: Mapping[str, str]) -> str:
    """The call that makes the same model with `changes`."""
    from stepsnet.analysis.doctor.rules import advise_in_python
    from stepsnet.models import get_variant

    made_from = getattr(loaded.model, "default_cfg", {}) if loaded.family else {}
    if not made_from or not changes.keys().isdisjoint(("clip", "lr")):
        return advise_in_python(changes)
    name, usual = made_from["architecture"], get_variant(made_from["architecture"]).options
    own = {key: value for key, value in made_from["options"].items() if usual.get(key) != value and key not in changes}
    words = [f"{key}={_in_python(value)}" for key, value in (own | dict(changes)).items()]
    return f'stepsnet.create_model("{name}", {", ".join(words)})'


def _in_python(value: Any) -> str:
    """A word in quotes; a number or a list as it is."""
    if isinstance(value, str) and not (value.isdigit() or value.startswith("[")):
        return f'"{value}"'
    return str(value)


def _print(diagnosis: Diagnosis, trained: bool | None) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    print_text(f"{diagnosis.name}: {diagnosis.weights}\nMeasured on {diagnosis.data}.")
    if trained is False:
        print_text("γ near 1 before training says little about training; examine a run for that.")
    console.print(Text(fit(f"{diagnosis.verdict}\n", columns()), style="bold"), soft_wrap=True)
    for finding in diagnosis.findings:
        console.print(Text.assemble((finding.severity, STYLES[finding.severity]), f"  {finding.name}"), soft_wrap=True)
        print_text(f"  {finding.what}\n  {finding.advice}")
        if finding.command:
            print(f"    {finding.command}")  # on one line, to be copied
        print_text(f"  Rule: {finding.rule}.\n")
    _print_blocks(diagnosis)


def _print_blocks(diagnosis: Diagnosis) -> None:
    """The blocks in numbers: all, or `SHOWN_BLOCKS` evenly spread."""
    blocks = diagnosis.measured.blocks
    shown = sorted({round(index * (len(blocks) - 1) / max(1, SHOWN_BLOCKS - 1)) for index in range(SHOWN_BLOCKS)})
    rows = []
    for index in shown:
        block = blocks[index]
        figures = (block.gamma, block.update, block.cosine, block.rank, block.state_gradient, block.weight_gradient)
        rows.append([str(index + 1), block.name, *_cells(figures)])
    block_columns = (
        Column("block", "name", align="right"), Column("name", "name", 2), "γ", Column("update", priority=3),
        Column("cosine", priority=3), Column("rank", priority=3), "‖∂L/∂y‖", "‖∂L/∂w‖",
    )  # fmt: skip
    print_table(Table(block_columns, rows))
    if len(shown) < len(blocks):
        print_text(f"{len(shown)} of {len(blocks)} blocks, evenly spread; --html and --json have all.\n")
    if diagnosis.measured.joins:
        joins = [
            [join.name, join.kind, str(join.width), str(join.fresh), *_cells((join.ratio,))]
            for join in diagnosis.measured.joins
        ]
        join_columns = ("join", Column("kind", "name", 3), Column("channels", priority=2), Column("fresh", priority=2))
        print_table(Table((*join_columns, "RMS(x)/RMS(y)"), joins))


def _cells(values: Sequence[float]) -> list[str]:
    return [f"{value:.3g}" for value in values]
