"""`stepsnet export RUN_OR_MODEL`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import print_json, print_text, progress
from stepsnet.cli.resolve import find_model, resolve
from stepsnet.errors import UsageError
from stepsnet.units import megabytes

if TYPE_CHECKING:
    from stepsnet.export import Exported
    from stepsnet.models import Model

SUMMARY = "write a model as a file for onnxruntime, OpenVINO or torch.export, and check it"
DESCRIPTION = """\
Writes a model as a file that runs without stepsnet. The file is then run, and its output compared with the model's,
at the model's own input size, for other batches and, with --dynamic, for other sizes. A file that differs by more
than 1e-4 (relative to the largest output if that is above 1) is deleted, and the exit code is 2.

  stepsnet export runs/first                                  a run: its final weights, or its latest checkpoint
  stepsnet export weights.safetensors --format openvino       a saved model
  stepsnet export swin_tiny --dynamic --out swin.onnx         a registered name: its structure, with random weights
  stepsnet export runs/resnet --fold --json                   batch norms folded into the convolutions

The batch size may always vary. --dynamic lets the image size (Swin and ResNet) or the text length (language models)
vary too, within a range that is printed and stored in the file. DeiT learns positions for one size, so --dynamic is
refused for it; --image-size chooses that size. The file also holds the model's name, plan, classes and version, and
the normalisation of its images. Detectors, segmenters and the key-value cache of `stepsnet generate` are not
exported."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    models = "the folder of a run or of `stepsnet stepify`, a saved model (.safetensors) or a registered name"
    add("model", metavar="RUN_OR_MODEL", help=models)
    formats = ("onnx", "torch-export", "openvino")
    add("--format", choices=formats, default="onnx", metavar="KIND", help="onnx (default), torch-export or openvino")
    dynamic = "let the image size or the text length vary, not only the batch"
    add("--dynamic", action="store_true", help=dynamic)
    add("--fold", action="store_true", help="fold batch norms into the convolutions before them (ResNet)")
    add("--out", type=Path, metavar="FILE", help="where to write (default: the model's or the run's name)")
    add("--image-size", metavar="N", help="the image size, or HEIGHTxWIDTH (default: the model's own)")
    add("--ema", action="store_true", help="the averaged weights of a run")
    add("--json", action="store_true", help="print one object instead of text")


def run(args: argparse.Namespace) -> int:
    from stepsnet.export import FORMATS, at_size, export_model, has_batch_norms, size_axes
    from stepsnet.models import fold

    size = None if args.image_size is None else read_size(args.image_size)
    model, stem, notes = with_notes(args.model, ema=args.ema)
    model.eval()
    if size is not None:
        at_size(model, *size)
    if args.dynamic and not size_axes(model):
        raise UsageError(f"--dynamic has no effect on {args.model}: the batch may always vary, but the image size is "
                         f"fixed; {why_fixed(model)}")
    written = model
    if args.fold:
        has_batch_norms(model)
        written = fold(model)
    path = args.out or Path(stem + FORMATS[args.format].suffix)
    with progress("tracing, writing, checking", unit="files") as bar:
        exported = export_model(written, path, form=args.format, any_size=args.dynamic, against=model)
        bar.advance()
    if args.json:
        print_json(to_json(exported, args.format, notes))
        return 0
    print_text("\n".join(notes + sentences(exported)))
    return 0


def read_size(text: str) -> tuple[int, int]:
    """Height and width from "224" or "224x320"."""
    sides = [int(side) for side in text.split("x") if side.isdecimal() and int(side) > 0]
    if len(sides) != text.count("x") + 1 or len(sides) > 2:
        raise UsageError(f"--image-size is {text!r}, but must be a number of pixels (224) or two (224x320).")
    return sides[0], sides[-1]


def with_notes(given: str, *, ema: bool) -> tuple[Model, str, list[str]]:
    """The model, a name for its file, and notes for the user."""
    from stepsnet.models.files import read_header

    named = resolve(given)
    if named.kind == "run":
        model, notes = run_model(named.path, ema=ema)
        return model, named.path.resolve().name, notes
    if ema:
        raise UsageError(f"--ema is for runs, which may keep an average of their weights; {given} is not a run.")
    if named.kind == "registered":
        return find_model(given), given, [f"{given} is a registered name: its weights are random."]
    if named.kind == "file" and "/" in (name := read_header(named.path)["name"]):
        task = name.partition("/")[0]
        raise UsageError(f"{given} is for {task}; only classifiers and language models are exported.")
    return find_model(given), named.path.stem, []


def run_model(folder: Path, *, ema: bool) -> tuple[Model, list[str]]:
    """The model of a run, with its class names and image normalisation."""
    from stepsnet.models import load_model
    from stepsnet.runs import folder as rundir
    from stepsnet.train.config import read_config
    from stepsnet.train.evaluate import trained_model
    from stepsnet.train.predictor import read_class_facts

    config = read_config(folder)
    if config.task in ("detection", "segmentation"):
        raise UsageError(f"{folder} is a run of {config.task}; only classifiers and language models are exported. "
                         f"`stepsnet predict {folder}` applies it.")
    if ema and not config.optim.ema:
        raise UsageError(f"{folder} kept no average of its weights: it was trained with optim.ema=0.")
    final = folder / (rundir.WEIGHTS_EMA if ema else rundir.WEIGHTS)
    if not final.exists():
        _, model = trained_model(folder, config, ema=ema)
        notes = [f"{folder} is not finished: these are the weights of its latest checkpoint."]
    else:
        model, notes = load_model(final), []
    if config.task == "classification":
        try:
            facts = read_class_facts(folder, config)
        except UsageError as gone:
            return model, [f"The file does not name its classes, as the run's data cannot be read: {gone}"]
        model.default_cfg |= {"class_names": facts["classes"], "mean": facts["mean"], "std": facts["std"]}
    return model, notes


def why_fixed(model: Model) -> str:
    """Why a file of this model takes one size only."""
    if model.family == "deit":
        return "DeiT learns positions for one size (--image-size chooses another one)."
    if model.family in ("swin", "swinpp"):
        return "its last map is smaller than one window, or patch merging does not divide its maps evenly."
    if model.family == "resnet":
        return "a ResNet needs images of at least 32×32 for that (--image-size)."
    return "of image models, only Swin, Swin++ and ResNet of this package take several sizes."


def sentences(exported: Exported) -> list[str]:
    size = exported.path.stat().st_size
    worst = max(exported.differences, key=lambda difference: difference.largest)
    lines = [f"{exported.path} ({megabytes(size)}), which takes {'; '.join(map(str, exported.axes))}."]
    for found in exported.differences:
        shape = "×".join(map(str, found.shape))
        lines.append(f"  input {shape:<18} differs by {found.largest:.1e} (largest output {found.scale:.2g})")
    return [*lines, f"Checked: at most {worst.largest:.1e} from the model in PyTorch."]


def to_json(exported: Exported, form: str, notes: list[str]) -> dict[str, Any]:
    free = {axis.name: {"from": axis.smallest, "to": axis.largest, "step": axis.step} for axis in exported.axes}
    checked = [difference.to_json() for difference in exported.differences]
    file = {"file": str(exported.path), "format": form}
    return {**file, "free": free, "checked": checked, "facts": exported.facts, "notes": notes}
