"""`stepsnet bench speed|memory|depth`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from stepsnet.cli.console import print_json, print_table, print_text, progress, say
from stepsnet.cli.options import count, is_given, refuse
from stepsnet.cli.resolve import find_model, named_weights
from stepsnet.errors import UsageError

SUMMARY = "measure speed and memory side by side: against timm, the plain baseline, other runtimes, over depth"
DESCRIPTION = """\
Measures speed and memory of models. `speed` runs them in one process, in turns (A B C, B C A, …), after a warm-up.
The column 'speed ×' is the speed relative to the reference: the median over the rounds, with its lower quartile.
Another column is the throughput as a share of this machine's peak in matrix products.

  speed   MODELS against --against (the first rival is the reference), or several models against the first of them
  memory  growth of total memory from the first --batch to the last (Figure 6d), and the exact bytes saved for backward
  depth   time and memory against depth and width, with fitted exponents; with --table 5b the paper's Figures 6c and 6d

  stepsnet bench speed swin_tiny --against timm --batch 8 32 --mode inference training
  stepsnet bench speed steps_deit_small --against baseline          the plain network of the same cost
  stepsnet bench speed swin_tiny --against eager --dtype bf16       itself in fp32
  stepsnet bench speed swin_tiny --against timm onnxruntime openvino --compile
  stepsnet bench speed deit_tiny steps_deit_tiny deit_small steps_deit_small --out bench/deit
  stepsnet bench memory swin_deep_d96 steps_swin_deep_d96
  stepsnet bench depth deit_tiny steps_deit_tiny --mode training
  stepsnet bench depth --table 5b --out bench/table5b

A model is a name of `stepsnet models`, a run's folder, a saved file or a folder of `stepsnet stepify`; for `depth`, a
name. Rivals: timm (the same network with the same weights), baseline (the plain network that belongs to a Steps
model), eager (the same model in fp32, not compiled), onnxruntime and openvino (the same model, exported). Quartiles
are narrowest on a machine that is otherwise idle."""

FEWEST_ROUNDS = 7
MODES = ("inference", "training")
RIVALS = ("timm", "baseline", "eager", "onnxruntime", "openvino")
ONLY_FOR = {
    "against": ("speed",), "dtype": ("speed",), "compile": ("speed",), "fold": ("speed",), "channels-last": ("speed",),
    "alike": ("speed",), "depths": ("depth",), "widths": ("depth",), "table": ("depth",), "rounds": ("speed", "depth"),
}  # fmt: skip
DEFAULT_BATCH = {"speed": [8], "memory": [32, 64], "depth": [4]}
DEFAULT_MODE = {"speed": ["inference"], "memory": ["training"], "depth": ["inference"]}
DEFAULT_MODELS = {"depth": ["deit_tiny", "steps_deit_tiny"]}
DEFAULT_ROUNDS = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=("speed", "memory", "depth"), help="what to measure")
    models = "names, run folders, saved files, folders of `stepsnet stepify`; for `depth`, names"
    usual = " ".join(DEFAULT_MODELS["depth"])
    add("models", nargs="*", default=[], metavar="MODEL", help=f"{models} (default of `depth`: {usual})")
    rivals = ", ".join(RIVALS) + "; the first is the reference"
    add("--against", nargs="+", choices=RIVALS, metavar="RIVAL", help=rivals)
    add("--batch", nargs="+", type=count(), metavar="N", help="batch sizes (default: 8; memory 32 64; depth 4)")
    add("--mode", nargs="+", choices=MODES, metavar="MODE", help="inference (default), training (default of memory)")
    precisions = "fp32 (default), bf16; bf16 training uses autocast"
    add("--dtype", nargs="+", choices=("fp32", "bf16"), metavar="TYPE", help=precisions)
    add("--rounds", type=count(), metavar="N", help=f"at least {FEWEST_ROUNDS} (default: {DEFAULT_ROUNDS})")
    add("--threads", type=count(most=1024), metavar="N", help="threads of torch (default: as torch chooses)")
    add("--compile", action="store_true", help="compile our model, block by block")
    add("--fold", action="store_true", help="fold batch norms of our model into convolutions (inference)")
    add("--channels-last", action="store_true", help="our model in channels-last memory")
    add("--alike", action="store_true", help="apply --compile, --fold and --channels-last to timm's model too")
    depths = "`depth`: numbers of blocks (default: 12 24 48 96 192; no number: depth does not vary)"
    add("--depths", nargs="*", type=count(), metavar="N", help=depths)
    widths = "`depth`: widths (default: 192 384 768; no number: width does not vary)"
    add("--widths", nargs="*", type=count(), metavar="N", help=widths)
    tables = "`depth`: the paper's networks of fixed width (5a) or fixed FLOPs (5b)"
    add("--table", choices=("5a", "5b"), help=tables)
    add("--out", metavar="DIR", help="write result.json, figures and report.html there")
    add("--json", action="store_true", help="print one object instead of tables")


def run(args: argparse.Namespace) -> int:
    from stepsnet.report.bench import bench_report, findings, machine_line, tables_of, timed_lines
    from stepsnet.research.bench import threads

    _check(args)
    if args.out:
        Path(args.out).mkdir(parents=True, exist_ok=True)  # to fail now, not when the work is done
    with threads(args.threads):
        document: dict[str, Any] = {"command": command_line(args), **MEASURES[args.what](args)}
    report = bench_report(document, Path(args.out)) if args.out else None
    if args.json:
        print_json(document)
        return 0
    print_text("\n".join([*findings(document), ""]))
    for table in tables_of(document):
        print_table(table)
    for line in (machine_line(document), *timed_lines(document)):
        print_text(line)
    if report is not None:
        print_text(f"Report: {report}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that exclude each other, and fill in the defaults of each kind of measurement."""
    for option, kinds in ONLY_FOR.items():
        if args.what not in kinds:
            refuse(args, option, because=f"is for `stepsnet bench {' and '.join(kinds)}`, not for {args.what}")
    chosen = [*args.models, *(f"--{option}" for option in ("depths", "widths") if getattr(args, option) is not None)]
    if args.table and chosen:
        raise UsageError(f"--table {args.table} sets models, depths and widths; leave out {', '.join(chosen)}.")
    args.models = args.models or DEFAULT_MODELS.get(args.what, [])
    if not args.models:
        example = "such as steps_deit_tiny; `stepsnet models` lists them all"
        raise UsageError(f"stepsnet bench {args.what} needs at least one model, {example}.")
    args.batch, args.mode = args.batch or DEFAULT_BATCH[args.what], args.mode or DEFAULT_MODE[args.what]
    args.dtype, args.rounds = args.dtype or ["fp32"], DEFAULT_ROUNDS if args.rounds is None else args.rounds
    if args.rounds < FEWEST_ROUNDS:
        raise UsageError(f"--rounds {args.rounds} is too few for quartiles; give at least {FEWEST_ROUNDS}.")
    if args.what == "memory" and (len(args.batch) < 2 or args.batch != sorted(set(args.batch))):
        sizes = " ".join(map(str, args.batch))
        raise UsageError(f"--batch {sizes} shows no growth; give at least two growing sizes, as --batch 32 64.")
    if args.depths == [] and args.widths == []:
        raise UsageError("--depths and --widths without numbers leave nothing to measure; give one of them a number.")
    if args.what == "depth" and len(args.batch) > 1:
        raise UsageError(f"`stepsnet bench depth` has one batch size; choose one of {', '.join(map(str, args.batch))}.")
    _check_preparation(args)
    if args.out and Path(args.out).exists() and not Path(args.out).is_dir():
        raise UsageError(f"--out {args.out} is a file, but must be a folder.")


def _check_preparation(args: argparse.Namespace) -> None:
    """Refuse preparations of models that have no effect."""
    if args.fold and "training" in args.mode:
        raise UsageError("--fold is for inference: a folded batch norm cannot be trained; leave out --mode training.")
    if "timm" not in (args.against or ()):
        refuse(args, "alike", because="prepares timm's model like ours: it needs --against timm")
    if not any(is_given(args, option) for option in ("compile", "fold", "channels-last")):
        refuse(args, "alike", because="has no effect without --compile, --fold or --channels-last")


def command_line(args: argparse.Namespace) -> str:
    """The command that repeats the measurement, with all defaults."""
    words = ["stepsnet", "bench", args.what, *(args.models if not args.table else [])]
    for option, value in vars(args).items():
        applies = args.what in ONLY_FOR.get(option.replace("_", "-"), (args.what,))
        if option in ("what", "models", "json", "out") or value in (None, False) or not applies:
            continue
        words.append(f"--{option.replace('_', '-')}")
        words += [] if value is True else [str(item) for item in (value if isinstance(value, list) else [value])]
    return shlex.join(words)


def _speed(args: argparse.Namespace) -> dict[str, Any]:
    from stepsnet.cpu import NO_BF16, has_bf16
    from stepsnet.export import has_batch_norms
    from stepsnet.models import VisionModel
    from stepsnet.research.bench import SpeedSettings, run_speed

    models = {word: find_model(word) for word in dict.fromkeys(args.models)}
    for name, model in models.items():
        if args.fold:
            has_batch_norms(model)
        if not isinstance(model, VisionModel):
            refuse(args, "channels-last", because=f"is for models that take images; {name} takes text")
    if "bf16" in args.dtype and not has_bf16():
        say(NO_BF16)
        args.dtype = ["fp32"]
    settings = SpeedSettings(
        against=tuple(args.against or ()), batches=tuple(args.batch), modes=tuple(args.mode), dtypes=tuple(args.dtype),
        rounds=args.rounds, compile=args.compile, fold=args.fold, channels_last=args.channels_last, alike=args.alike,
    )  # fmt: skip
    with progress("timing", settings.count_passes(len(models)), "passes") as bar:
        document = run_speed(models, settings, tick=bar.advance)
    accuracy = printed_accuracy()
    names = {one["model"] for case in document["cases"] for one in case["contenders"]}
    return document | {"accuracy": {name: accuracy[name] for name in sorted(names) if name in accuracy}}


def _memory(args: argparse.Namespace) -> dict[str, Any]:
    from stepsnet.research.bench import MemorySubject, run_memory

    subjects = [MemorySubject(word, named_weights(word)) for word in dict.fromkeys(args.models)]
    with progress("measuring", len(subjects) * len(args.mode) * len(args.batch), "processes") as bar:
        return run_memory(subjects, batches=args.batch, modes=args.mode, tick=bar.advance)


def _depth(args: argparse.Namespace) -> dict[str, Any]:
    from stepsnet.research.bench import run_growth, run_rows
    from stepsnet.research.bench.growth import DEPTHS, WIDTHS
    from stepsnet.research.paper import TABLES

    if args.table:
        rows: dict[str, list[tuple[str, float | None]]] = {}
        for row in TABLES[f"table{args.table}"].rows:
            rows.setdefault(row.label, []).append((row.model, float(row.printed["result"])))
        passes = len(args.mode) * sum(map(len, rows.values())) * (args.rounds + 1)
        with progress("timing", passes, "passes") as bar:
            return run_rows(rows, modes=args.mode, batch=args.batch[0], rounds=args.rounds, tick=bar.advance)
    depths = DEPTHS if args.depths is None else args.depths
    widths = WIDTHS if args.widths is None else args.widths
    passes = len(args.models) * len(args.mode) * (len(depths) + len(widths)) * (args.rounds + 1)
    with progress("timing", passes, "passes") as bar:
        return run_growth(
            args.models, depths=depths, widths=widths, modes=args.mode, batch=args.batch[0], rounds=args.rounds,
            tick=bar.advance,
        )  # fmt: skip


MEASURES = {"speed": _speed, "memory": _memory, "depth": _depth}


def printed_accuracy() -> dict[str, float]:
    """The paper's top-1 accuracy of every registered model that has one."""
    from stepsnet.research.paper import TABLES

    rows = [row for name in ("table1", "table5a", "table5b") for row in TABLES[name].rows]
    return {row.model: float(row.printed["result"]) for row in rows if not row.options}
