"""`stepsnet stepify MODEL` and `stepsnet deepen MODEL`: models of timm and transformers, written to a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.cli.console import print_json, print_text, progress, say
from stepsnet.cli.options import check_folder, refuse
from stepsnet.cli.resolve import find_model, named_weights
from stepsnet.errors import UsageError
from stepsnet.files import replace_file

if TYPE_CHECKING:
    from torch import nn

    from stepsnet.surgery.report import SurgeryReport

HEADS = "keep_dim"
SUMMARY = "give steps to a model of timm or transformers: deeper at the same cost"
DESCRIPTION = """\
Replaces the blocks of a model by narrower blocks of the same class in several steps, and writes it to a folder. The new
blocks are untrained. --plan is a number of steps at equal cost, or width x blocks for each step, narrow to wide.

  stepsnet stepify timm:vit_small_patch16_224 --plan 3 --out stepped
  stepsnet stepify timm:vit_tiny_patch16_224 --plan "96x12, 136x6, 192x6" --join matched_grad --out stepped-tiny
  stepsnet stepify hf:FOLDER --plan 2 --out stepped-llama   a model that transformers saved
  stepsnet info stepped                                     also: doctor, analyze, bench speed, export
  stepsnet train image_folder model=stepped data.root=IMAGES

`stepsnet plan MODEL` finds a plan for a budget. From Python: stepsnet.stepify, stepsnet.surgery.load(FOLDER)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    parser.add_argument("--plan", required=True, help="a number of steps, or a plan such as '192x12, 272x6, 384x6'")
    joins = "plain (Eq. 5, default) or matched_grad"
    parser.add_argument("--join", help=joins)


def run(args: argparse.Namespace) -> int:
    from stepsnet.models.design import has_steps
    from stepsnet.surgery import stepify, surgery_report

    with progress(f"stepify {args.model}"):
        model = _load(args)
        stepify(model, args.plan, join=args.join or "plain", heads=args.heads or HEADS, blocks=args.blocks)
    report = surgery_report(model)
    if not has_steps(report.plan_after):
        one = f"has no effect: the plan {report.plan_after} has one step per stage"
        refuse(args, "join", "heads", because=one)
    if report.plan_after == report.plan_before:
        raise UsageError(f"--plan {args.plan} changes nothing: {args.model} has the plan {report.plan_before}.")
    _refuse_heads(args, report)
    return _write(model, args)


class Deepen:
    """`stepsnet deepen MODEL`."""

    SUMMARY = "add blocks to a trained model without changing its outputs"
    DESCRIPTION = """\
Adds residual blocks that start as the identity, verifies that the outputs are equal, and writes the model to a folder.
Training continues from there. hf:FOLDER, a run, a saved file and pretrained:NAME are trained models; timm:NAME and
hf:TYPE have random weights. For trained weights of timm, use stepsnet.deepen in Python.

  stepsnet deepen hf:FOLDER --blocks-added 256x4 --out deeper             four blocks of width 256 in front
  stepsnet deepen hf:FOLDER --blocks-added 512x4 --at every:4 --out spread
  stepsnet prepare-text BOOKS --tokenizer FOLDER/tokenizer.json --out TEXT    of a byte-level BPE
  stepsnet train language model=deeper data.root=TEXT
  stepsnet deepen timm:vit_tiny_patch16_224 --blocks-added 96x6 --out deeper-vit
  stepsnet deepen pretrained:steps_transformer_mini --blocks-added 48x2 --out deeper-mini      or a run, or a saved file
  stepsnet generate deeper-mini/weights.safetensors --prompt "The "
  stepsnet train language weights=deeper-mini/weights.safetensors data.root=BOOKS

From Python: stepsnet.deepen, stepsnet.freeze_old, stepsnet.undeepen, stepsnet.surgery.load(FOLDER)."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        _add_shared(parser, "; also pretrained:NAME, a run, or a saved file")
        parser.add_argument("--blocks-added", required=True, metavar="WIDTHxN", help="the new blocks, such as 256x4")
        parser.add_argument("--at", default="front", help="front (default), every:N, or positions such as 0,3")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from stepsnet.integrations.foreign import is_foreign
        from stepsnet.surgery import deepen, surgery_report

        if not is_foreign(args.model):
            own = f"is for models of timm and transformers; {args.model} is one of this package"
            refuse(args, "blocks", "heads", because=own)
        at = [int(word) for word in args.at.split(",") if word] if args.at.replace(",", "").isdigit() else args.at
        with progress(f"deepen {args.model}"):
            model = _load(args, own=True)
            deepen(model, args.blocks_added, at=at, heads=args.heads or HEADS, blocks=args.blocks)
        _refuse_heads(args, surgery_report(model))
        return _write(model, args)


def _add_shared(parser: argparse.ArgumentParser, also: str = "") -> None:
    parser.add_argument("model", help=f"timm:NAME, hf:FOLDER or hf:TYPE{also}")
    parser.add_argument("--out", required=True, type=Path, help="the folder to write; it must be new or empty")
    parser.add_argument(
        "--heads", choices=("keep_dim", "keep_count"),
        help="keep_dim (default): attention heads of narrow blocks keep their dimension, or get the nearest one that "
        "divides the width; keep_count: they keep their number",
    )  # fmt: skip
    where = "name of the module list that holds the blocks, as model.layers, if it is not found"
    parser.add_argument("--blocks", metavar="PATH", help=where)
    parser.add_argument("--json", action="store_true", help="print the report as one object")


def _refuse_heads(args: argparse.Namespace, report: SurgeryReport) -> None:
    if not report.heads:
        refuse(args, "heads", because=f"has no effect: the blocks of {args.model} have no attention heads")


def _load(args: argparse.Namespace, *, own: bool = False) -> nn.Module:
    """The model; with `own`, also one of this package."""
    from stepsnet.integrations.foreign import is_foreign, load_foreign
    from stepsnet.runs.folder import is_stepped

    if is_stepped(args.model.removeprefix("hf:")):
        raise UsageError(f"{args.model} was stepified or deepened before; start from the plain model.")
    check_folder(args.out)
    if own and not is_foreign(args.model):
        return find_model(args.model)
    if not is_foreign(args.model):
        how = "registered models take plan= in `stepsnet train` and create_model"
        raise UsageError(f"'{args.model}' is not a model of another library: write timm:NAME or hf:FOLDER; {how}.")
    loaded = load_foreign(args.model, with_head=True)
    if loaded.name != args.model:
        say(loaded.name)
    return loaded.model


def _copy_beside(word: str, out: Path) -> None:
    """The tokenizer or the names of the classes, which are beside the weights of a run."""
    from stepsnet.data.text.tokens import TOKENIZER
    from stepsnet.runs.folder import CLASSES

    if (weights := named_weights(word)) is None:
        return
    for name in (TOKENIZER, CLASSES):
        if (beside := weights.with_name(name)).is_file():
            replace_file(out / name, beside.read_bytes())


def _write(model: nn.Module, args: argparse.Namespace) -> int:
    import json

    from stepsnet.models import Model, save_model
    from stepsnet.runs.folder import WEIGHTS
    from stepsnet.surgery import surgery_report
    from stepsnet.surgery.saving import save

    report = surgery_report(model)
    if isinstance(model, Model):
        args.out.mkdir(parents=True, exist_ok=True)
        save_model(model, args.out / WEIGHTS)
        _copy_beside(args.model, args.out)
    else:
        save(model, args.out)
    if args.json:
        print_json(json.loads(report.to_json()) | {"out": str(args.out)})
    else:
        print_text(f"{report}\nwritten to {args.out}")
    return 0
