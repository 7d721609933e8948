"""`stepsnet analyze WHAT MODEL`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import Bar, print_json, print_table, print_text, progress
from stepsnet.cli.options import count, refuse, seed
from stepsnet.cli.resolve import load_with_inputs
from stepsnet.errors import UsageError, nearest
from stepsnet.report.table import Column, Table

if TYPE_CHECKING:
    from stepsnet.analysis.states import Result
    from stepsnet.integrations.foreign import Loaded
    from stepsnet.report.chart import Chart
    from stepsnet.tasks.base import Batch
    from stepsnet.train.loader import ValidationBatches

SUMMARY = "measure inside a model: shortcut ratio, gradients, steps, width; masked paths, dropped blocks"
DESCRIPTION = """\
Measures one quantity inside a model:

  gamma         the shortcut ratio γ = σ(z_0)/σ(z_l) and the other weights of Eq. 2
  gradients     ∂ẑ_l/∂ẑ_0 by autograd beside γ, and gradient norms of the state z_l (all channels) and of weights
  contribution  how much each step changes the state; a model of `stepify` counts as one step
  width         the effective rank of the state: how many directions of its width it uses
  paths         validation of a run with channels of the slow path (first step) or of the fast path (all others)
                set to zero (Table 6)
  drops         validation of a run without the last blocks of one step; the removed blocks cost about the same
                in each step (Table 7)

The model is a registered name, newly initialised; the folder of a run, on its validation data; a saved file;
timm:NAME; hf:TYPE or hf:FOLDER. `stepsnet doctor` checks shortcut, gradients, depth
and width at once and recommends changes.

  stepsnet analyze gamma steps_deit_tiny
  stepsnet analyze gradients runs/first --plot gradients.svg
  stepsnet analyze gamma timm:vit_tiny_patch16_224 --start 2      the state after block 2 is z_0
  stepsnet analyze drops runs/first --json"""


@dataclass(frozen=True)
class Shown:
    """A result, its table, a remark below the table, and a function that draws it with a note."""

    result: Result
    columns: Sequence[str]
    rows: list[list[str]]
    remark: str
    draw: Callable[[str], Chart]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", metavar="WHAT", help=", ".join((*ON_INPUTS, *ON_METRIC)))
    names = "a registered name, a run's folder, a saved file, timm:NAME, hf:TYPE or hf:FOLDER"
    add("model", metavar="MODEL", help=names)
    start = "gamma: the block whose state is z_0 (default: 0, the input of the first block)"
    add("--start", type=count(least=0), metavar="L", help=start)
    batch = "number of random inputs; for paths and drops, validation samples per batch"
    add("--batch", type=count(), metavar="N", help=batch)
    add("--data", metavar="DIR", help="paths and drops: where the run's data is now, if it was moved")
    add("--seed", type=seed, help="random seed for initial weights, random inputs and directions (default: 0)")
    add("--plot", type=Path, metavar="FILE", help="also draw a chart: .svg")
    add("--json", action="store_true", help="print one object instead of a table")


def run(args: argparse.Namespace) -> int:
    from stepsnet.report.chart import check_chart_path

    known = (*ON_INPUTS, *ON_METRIC)
    if args.what not in known:
        raise UsageError(f"There is no analysis '{args.what}'{nearest(args.what, known)}; choose {', '.join(known)}.")
    if args.what != "gamma":
        refuse(args, "start", because=f"is for gamma; {args.what} begins at the input of the first block")
    if args.what in ON_METRIC:
        refuse(args, "seed", because=f"has no effect on {args.what}: the run's weights and data are not random")
    else:
        refuse(args, "data", because=f"is for paths and drops; {args.what} uses the data path of the run")
    if args.plot is not None:
        check_chart_path(args.plot)
    shown, described = _on_metric(args) if args.what in ON_METRIC else _on_inputs(args)
    if args.plot is not None:
        shown.draw(described).save(args.plot)
    if args.json:
        print_json({"what": args.what, "model": args.model, "measured_on": described, **shown.result.to_json()})
    else:
        print_text(described)
        print_table(Table((Column(shown.columns[0], "name"), *shown.columns[1:]), shown.rows))
        print_text(shown.remark)
        if args.plot is not None:
            print_text(f"Chart: {args.plot}")
    return 0


def _on_inputs(args: argparse.Namespace) -> tuple[Shown, str]:
    import dataclasses

    with progress(f"{args.what} of {args.model}", None, "models") as bar:
        loaded = load_with_inputs(args.model, args.seed or 0)
        if "random" not in loaded.data:
            unused = ["batch"] if args.what == "gradients" else ["batch", "seed"]  # gradients draws directions
            refuse(args, *unused, because=f"is for random inputs; {args.model} is measured on {loaded.data}")
        if args.batch is not None:
            inputs = _resized(loaded.inputs, args.batch, args.seed or 0)
            loaded = dataclasses.replace(loaded, inputs=inputs, data=f"{args.batch} random inputs")
        shown = ON_INPUTS[args.what](loaded, args)
        bar.advance()
    init = getattr(loaded.model, "init", None)
    words = f"; initialisation: {'its own' if init == 'own' else init}" if init else ""
    return shown, f"{loaded.description}{words}"


def _resized(inputs: tuple[Any, ...], batch: int, seed: int) -> tuple[Any, ...]:
    """`batch` random inputs like the given ones, whose first dimension is the batch."""
    import torch

    def like(x: Any) -> Any:
        shape = (batch, *x.shape[1:])
        if batch <= len(x):
            return x[:batch]
        if x.is_floating_point():
            return torch.randn(shape, generator=generator)
        return x.flatten()[torch.randint(x.numel(), shape, generator=generator)]  # the tokens were drawn uniformly

    generator = torch.Generator().manual_seed(seed)
    return tuple(like(x) if isinstance(x, torch.Tensor) else x for x in inputs)


def _gamma(loaded: Loaded, args: argparse.Namespace) -> Shown:
    from stepsnet.analysis import shortcut_ratio
    from stepsnet.report.analysis import shortcut_chart

    found = shortcut_ratio(loaded.model, *loaded.inputs, start=args.start or 0)
    columns = ("block", "γ", "σ_l", "all branches", "own branch", "cosine with z_0")
    lists = (found.gamma, found.sigma, found.residual_weight, found.branch_weight, found.cosine)
    mean = f"Mean γ {found.mean:.3f} over {len(found.gamma)} blocks."
    remark = f"{mean} Branches are σ(z_l - z_0)/σ_l and σ(z_l - z_(l-1))/σ_l."
    rows = _by_block(found.block, found.stage, lists)
    return Shown(found, columns, rows, remark, lambda note: shortcut_chart(found, note))


def _gradients(loaded: Loaded, args: argparse.Namespace) -> Shown:
    from stepsnet.analysis import gradient_flow
    from stepsnet.analysis.gradients import measure_flow
    from stepsnet.report.analysis import gradient_chart

    if loaded.loss is None:
        loss = "cross-entropy against random classes"
        found = gradient_flow(loaded.model, *loaded.inputs, seed=args.seed or 0)
    else:
        loss = "the run's own"
        found = measure_flow(loaded.model, loaded.loss, *loaded.inputs, seed=args.seed or 0)
    columns = ("block", "∂ẑ_l/∂ẑ_0", "γ", "gain", "‖∂L/∂z_l‖", "‖∂L/∂weights‖")
    lists = (found.dz, found.gamma, found.gain, found.activation_norms, found.block_norms)
    steps = ", ".join(f"{step} {norm:.3g}" for step, norm in zip(found.steps, found.step_norms, strict=True))
    remark = f"Loss {found.loss:.4g}, {loss}. ‖∂L/∂weights‖ by step: {steps}. Eq. 2 expects ∂ẑ_l/∂ẑ_0 = γ."
    rows = _by_block(found.block, found.stage, lists)
    return Shown(found, columns, rows, remark, lambda note: gradient_chart(found, note))


def _contribution(loaded: Loaded, args: argparse.Namespace) -> Shown:  # noqa: ARG001
    from stepsnet.analysis import step_contribution
    from stepsnet.report.analysis import contribution_chart

    found = step_contribution(loaded.model, *loaded.inputs)
    columns = ("step", "blocks", "‖update‖/‖z‖", "share of z", "‖z_0‖/‖z‖", "share of z_0")
    lists = (found.norm, found.share, found.z_0_norm, found.z_0_share)
    by_step = zip(found.steps, found.blocks, *lists, strict=True)
    rows = [[step, str(blocks), *map(_number, values)] for step, blocks, *values in by_step]
    remark = "z is the final state of the stage; the shares of z_0, the steps and the joins add up to 1."
    return Shown(found, columns, rows, remark, lambda note: contribution_chart(found, note))


def _width(loaded: Loaded, args: argparse.Namespace) -> Shown:  # noqa: ARG001
    from stepsnet.analysis import width_use
    from stepsnet.report.analysis import width_chart

    found = width_use(loaded.model, *loaded.inputs)
    columns = ("block", "effective rank", "of z_0", "at most", "use")
    lists = (found.rank, found.rank_0, found.limit, found.use)
    remark = "exp(entropy) of the squared singular values, channels centred; at most min(width, positions - 1)."
    rows = _by_block(found.block, found.stage, lists)
    return Shown(found, columns, rows, remark, lambda note: width_chart(found, note))


def _on_metric(args: argparse.Namespace) -> tuple[Shown, str]:
    import dataclasses

    from stepsnet.analysis.states import macro_nets
    from stepsnet.data.config import EMBEDDED_KINDS
    from stepsnet.runs import folder as rundir
    from stepsnet.train.config import customise_resumed, read_config
    from stepsnet.train.distributed import Processes, choose_device
    from stepsnet.train.evaluate import trained_model
    from stepsnet.train.loader import ValidationBatches

    folder = Path(args.model).expanduser()
    if not rundir.is_run(folder):
        raise UsageError(
            f"{args.what} removes parts of a trained network and measures its metric again: it needs the folder "
            f"of a run, which {args.model} is not (`stepsnet runs` lists them)."
        )
    config = dataclasses.replace(read_config(folder), parallel="none")
    if args.data is not None and config.data.kind in EMBEDDED_KINDS:
        raise UsageError(f"--data has no effect: the data of {folder}, {config.data.kind}, is part of stepsnet.")
    words = [f"data.root={args.data}"] if args.data is not None else []
    words += [f"eval.batch_size={args.batch}"] if args.batch is not None else []
    config = customise_resumed(config, words)
    task, model = trained_model(folder, config)
    processes = Processes(device=choose_device(config.device))
    model.to(processes.device)
    metric = task.headline

    def measure(network: Any, batch: Batch) -> tuple[float, float]:
        found = task.evaluate(network, {key: tensor.to(processes.device) for key, tensor in batch.items()})
        if f"{metric}_sum" not in found:
            tasks = "classification and language"
            raise UsageError(f"{args.what} is for runs of {tasks}; {folder} is a run of {task.name}.")
        return float(found[f"{metric}_sum"]), float(found["count"])

    batches = ValidationBatches(task, config.eval.batch_size or config.batch_size, config.workers, processes)
    steps = sum(len(net.widths) for net in macro_nets(model))
    passes = 1 + (steps if args.what == "drops" else 10)
    with progress(f"{args.what} of {args.model}", passes * len(batches), "batches") as bar:
        shown = ON_METRIC[args.what](model, _Counted(batches, bar), measure, metric)
    return shown, f"{folder}: {metric} on {len(task.valid):,} validation samples, without retraining"


class _Counted:
    """The batches that count; every pass over them advances the bar."""

    def __init__(self, batches: ValidationBatches, bar: Bar) -> None:
        self.batches, self.bar = batches, bar

    def __iter__(self) -> Iterator[Batch]:
        for batch, counts in self.batches:
            if counts:
                yield batch
            self.bar.advance()


def _paths(model: Any, batches: _Counted, measure: Any, metric: str) -> Shown:
    from stepsnet.analysis import mask_paths
    from stepsnet.report.analysis import paths_chart

    found = mask_paths(model, batches, measure)
    by_size = zip(found.sizes, found.slow, found.fast, strict=True)
    rows = [[str(size), _number(slow), _number(fast)] for size, slow, fast in by_size]
    remark = "The first n (slow path) or the last n (fast path) channels of x are zero before the StepsNet (Table 6)."
    columns = ("n", f"slow path: {metric}", f"fast path: {metric}")
    return Shown(found, columns, rows, remark, lambda note: paths_chart(found, metric, note))


def _drops(model: Any, batches: _Counted, measure: Any, metric: str) -> Shown:
    from stepsnet.analysis import drop_blocks
    from stepsnet.report.analysis import drops_chart

    found = drop_blocks(model, batches, measure)
    rows = [
        [step, str(count), f"{share:.1%}", _number(value)]
        for step, count, share, value in zip(found.steps, found.dropped, found.share, found.metric, strict=True)
    ]
    remark = "The last blocks of one step at a time are left out, about as much computation from each (Table 7)."
    columns = ("step", "blocks left out", "share of the blocks' weights", metric)
    return Shown(found, columns, rows, remark, lambda note: drops_chart(found, metric, note))


def _by_block(blocks: Sequence[int], stages: Sequence[int], lists: Sequence[Sequence[float]]) -> list[list[str]]:
    several = len(set(stages)) > 1
    pairs = zip(blocks, stages, strict=True)
    names = [f"stage {stage + 1}, block {block}" if several else str(block) for block, stage in pairs]
    return [[name, *map(_number, values)] for name, *values in zip(names, *lists, strict=True)]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


ON_INPUTS: dict[str, Callable[[Loaded, argparse.Namespace], Shown]] = {
    "gamma": _gamma, "gradients": _gradients, "contribution": _contribution, "width": _width,
}  # fmt: skip
ON_METRIC: dict[str, Callable[[Any, _Counted, Any, str], Shown]] = {"paths": _paths, "drops": _drops}
