"""`stepsnet doctor MODEL_OR_RUN`."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsnet.analysis.doctor import Diagnosis
    from stepsnet.integrations.foreign import Loaded

SUMMARY = "examine a model or a run: shortcut, gradients, depth, joins, and what to change"
DESCRIPTION = """\
Looks into a model and says where its shortcut degrades, where gradients vanish or explode, whether its depth and width are
used, and what to change: each finding with its number, the rule it broke, and a command. A run is examined on its own
validation data, training curve included; anything else on random inputs.

  stepsnet doctor runs/first                     a run, finished or not
  stepsnet doctor runs/first --html doctor.html  with figures, in one file
  stepsnet doctor steps_deit_tiny                a model as it is initialised
  stepsnet doctor weights.safetensors            a saved one
  stepsnet doctor timm:vit_tiny_patch16_224      one of timm's, as initialised
  stepsnet doctor hf:gpt2                        one of transformers', as initialised; hf:FOLDER with its weights

The answer is 0 however ill the model is; --strict leaves with 1 where there is more than notes."""

SHOWN_BLOCKS = 16
STYLES = {"severe": "bold red", "warning": "bold yellow", "note": "bold"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model of `stepsnet models`, a run's folder, a saved file, timm:NAME or hf:FOLDER_OR_TYPE")
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page with figures there")
    parser.add_argument("--json", action="store_true", help="print one object instead of the page")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of initial weights and random inputs (default: 0)")
    parser.add_argument("--strict", action="store_true", help="leave with exit code 1 if there is more than notes")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json, progress
    from stepsnet.cli.models_or_runs import load_any
    from stepsnet.report.doctor import write_doctor_page
    from stepsnet.report.html import check_place
    from stepsnet.runs.folder import is_run

    if args.html:
        check_place(Path(args.html))
    place = Path(args.model).expanduser()
    folder = place if is_run(place) else None
    with progress("examining", 2, "parts") as bar:
        patient = load_any(args.model, args.seed)
        bar.advance(note="measuring")
        diagnosis, curves = examine(patient, folder)
        bar.advance()
    document = diagnosis.to_json()
    if args.html:
        write_doctor_page(Path(args.html), document, curves)
    if args.json:
        print_json(document)
    else:
        _print(diagnosis, patient.trained)
        if args.html:
            print(f"Figures and every block: {args.html}")
    return 1 if args.strict and not diagnosis.healthy else 0


def examine(patient: Loaded, folder: Path | None) -> tuple[Diagnosis, dict[str, list[dict[str, Any]]]]:
    """The diagnosis of a model, or of the run in `folder`, and the lines of the run's files."""
    from stepsnet.analysis.doctor import diagnose
    from stepsnet.analysis.doctor_curves import judge_curves
    from stepsnet.analysis.doctor_design import design_of
    from stepsnet.runs.folder import read_lines
    from stepsnet.train.config import read_config

    def advise(changes: Mapping[str, str]) -> str:
        return _for_model(patient, changes) if folder is None else _for_run(folder, changes)

    clip = 0.0 if folder is None else read_config(folder).optim.clip
    diagnosis = diagnose(
        patient.model, *patient.inputs, loss=patient.loss, name=patient.name, weights=patient.weights, data=patient.data,
        trained=patient.trained, clip=clip, advise=advise,
    )  # fmt: skip
    if folder is None:
        return diagnosis, {}
    curves = {name: read_lines(folder / f"{name}.jsonl") for name in ("metrics", "eval", "gamma")}
    more = judge_curves(curves["metrics"], curves["eval"], curves["gamma"], clip=clip, design=design_of(patient.model))
    return diagnosis.with_findings(more, advise), curves


def _for_run(folder: Path, changes: Mapping[str, str]) -> str:
    """The command that trains the same once more with the changes; what the run itself had changed of its recipe stays."""
    from stepsnet.files import read_json
    from stepsnet.runs.folder import ENVIRONMENT
    from stepsnet.train.config import read_config
    from stepsnet.train.recipes import RECIPES, get_recipe
    from stepsnet.train.typed import flat, to_dict

    config = read_config(folder)
    names = {"clip": "optim.clip"} | {key: f"model_args.{key}" for key in ("residual", "embed_dim", "depth", "depths")}
    new = {names.get(key, key): value or f"{config.lr / 3:.2g}" for key, value in changes.items()}  # "lr" without a value: lower
    if config.recipe not in RECIPES:
        return "with " + " ".join(f"{key}={value}" for key, value in new.items())
    usual, own = flat(to_dict(get_recipe(config.recipe))), flat(to_dict(config))
    unsaid = ["out", "recipe", "epochs" if config.epochs is None else "iters"]  # of the two lengths, one takes the other's place
    kept = {key: "none" if value is None else value for key, value in own.items() if key not in unsaid and usual.get(key) != value}
    processes = read_json(folder / ENVIRONMENT).get("processes", 1)
    start = "stepsnet" if config.parallel == "none" else f"torchrun --nproc-per-node {processes} -m stepsnet"
    return " ".join([start, "train", config.recipe, *(f"{key}={_in_shell(value)}" for key, value in (kept | new).items())])


def _in_shell(value: Any) -> str:
    """A word that a shell takes as it is, in double quotes where it would not."""
    word = str(value)
    return word if shlex.quote(word) == word else '"' + re.sub(r'([\\"$`])', r"\\\1", word) + '"'


def _for_model(patient: Loaded, changes: Mapping[str, str]) -> str:
    """The call that makes the same model with the changes."""
    from stepsnet.analysis.doctor_rules import advise_in_python
    from stepsnet.models import get_variant

    made_from = getattr(patient.model, "default_cfg", {}) if patient.family else {}
    if not made_from or not changes.keys().isdisjoint(("clip", "lr")):
        return advise_in_python(changes)
    name, usual = made_from["architecture"], get_variant(made_from["architecture"]).options
    own = {key: value for key, value in made_from["options"].items() if usual.get(key) != value and key not in changes}
    words = [f"{key}={_in_python(value)}" for key, value in (own | dict(changes)).items()]
    return f'stepsnet.create_model("{name}", {", ".join(words)})'


def _in_python(value: Any) -> str:
    """A word in quotes; a number, or a list of them, as it is written."""
    if isinstance(value, str) and not (value.isdigit() or value.startswith("[")):
        return f'"{value}"'
    return str(value)


def _print(diagnosis: Diagnosis, trained: bool | None) -> None:
    from rich.text import Text

    from stepsnet.cli.console import console

    console.print(Text(f"{diagnosis.name}: {diagnosis.weights}"), soft_wrap=True)
    console.print(Text(f"Looked at with {diagnosis.data}."), soft_wrap=True)
    if trained is False:
        console.print("A γ near 1 before training promises nothing: its first steps decide. Examine a run for that.", soft_wrap=True)
    console.print(Text(f"{diagnosis.verdict}\n", style="bold"), soft_wrap=True)
    for finding in diagnosis.findings:
        console.print(Text.assemble((finding.severity, STYLES[finding.severity]), f"  {finding.name}"), soft_wrap=True)
        lines = [finding.what, finding.advice, *([f"  {finding.command}"] if finding.command else []), f"Rule: {finding.rule}."]
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=not console.is_terminal)
        console.print()
    _print_blocks(diagnosis)


def _print_blocks(diagnosis: Diagnosis) -> None:
    """The blocks in numbers: all of few, a fair choice of many."""
    from stepsnet.cli.numbers import print_table

    blocks = diagnosis.vitals.blocks
    shown = sorted({round(index * (len(blocks) - 1) / max(1, SHOWN_BLOCKS - 1)) for index in range(SHOWN_BLOCKS)})
    rows = [
        [str(index + 1), blocks[index].name, *_cells((blocks[index].gamma, blocks[index].update, blocks[index].cosine, blocks[index].rank)),
         *_cells((blocks[index].state_gradient, blocks[index].weight_gradient))]
        for index in shown
    ]  # fmt: skip
    print_table(("block", "name", "γ", "update", "cosine", "rank", "‖∂L/∂z‖", "‖∂L/∂w‖"), rows, left=(1,))
    if diagnosis.vitals.joins:
        joins = [[join.name, join.kind, str(join.width), str(join.fresh), *_cells((join.ratio,))] for join in diagnosis.vitals.joins]
        print_table(("join", "kind", "channels", "fresh", "RMS(x)/RMS(y)"), joins, left=(0, 1))


def _cells(values: Sequence[float]) -> list[str]:
    return [f"{value:.3g}" for value in values]
