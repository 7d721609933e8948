"""`stepsnet analyze WHAT MODEL`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepsnet.cli.console import Bar
    from stepsnet.integrations.foreign import Loaded
    from stepsnet.tasks.base import Batch
    from stepsnet.train.loader import ValidationBatches

SUMMARY = "look inside a model: shortcut ratio, gradients, steps, width; paths masked, blocks dropped"
DESCRIPTION = """\
Measures one thing inside a model, block by block:

  gamma         the shortcut ratio γ = σ(z_0)/σ(z_l) and the other weights of Eq. 2
  gradients     ∂ẑ_l/∂ẑ_0 by autograd beside γ, and the norms of the loss' gradients
  contribution  how far each step moves the state
  width         the effective rank of the state: how many directions of its width it uses
  paths         a trained run with channels of the slow or the fast path set to zero (Table 6)
  drops         a trained run without the last blocks of one step, similar computation each (Table 7)

The model is a registered name, newly initialised; the folder of a run, on its validation data; a saved file; timm:NAME;
hf:TYPE or hf:FOLDER. `stepsnet doctor` looks at everything and says what to change.

  stepsnet analyze gamma steps_deit_tiny
  stepsnet analyze gradients runs/first --plot gradients.png
  stepsnet analyze gamma timm:vit_tiny_patch16_224 --start 2      the state after block 2 serves as z_0
  stepsnet analyze drops runs/first --json"""


class Table(Protocol):
    """What every analysis returns."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Shown:
    """A result, its table for the terminal, what to say below it, and how to draw it under a note."""

    result: Table
    columns: Sequence[str]
    rows: list[list[str]]
    words: str
    draw: Callable[[str], Figure]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="WHAT", help=", ".join((*ON_INPUTS, *ON_METRIC)))
    parser.add_argument("model", metavar="MODEL", help="a registered name, a run's folder, a saved file, timm:NAME, hf:TYPE or hf:FOLDER")
    parser.add_argument("--start", type=int, default=0, metavar="L", help="gamma: the block whose state serves as z_0 (default: 0, none)")
    parser.add_argument("--batch", type=int, metavar="N", help="random inputs, or for paths and drops validation samples, at a time")
    parser.add_argument("--data", metavar="DIR", help="paths and drops: where the run's data is now, if not where it was")
    parser.add_argument("--seed", type=int, default=0, help="of weights that are newly made, random inputs and directions (default: 0)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it too: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print one object instead of a table")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json
    from stepsnet.cli.numbers import print_table
    from stepsnet.errors import UsageError, nearest
    from stepsnet.report.figures import check_picture, save_figure

    known = (*ON_INPUTS, *ON_METRIC)
    if args.what not in known:
        raise UsageError(f"stepsnet analyze knows no '{args.what}'{nearest(args.what, known)}; it knows {', '.join(known)}")
    if args.batch is not None and args.batch < 1:
        raise UsageError(f"--batch is a number of samples, at least 1, not {args.batch}")
    if args.plot is not None:
        check_picture(args.plot)
    shown, described = _on_metric(args) if args.what in ON_METRIC else _on_inputs(args)
    if args.plot is not None:
        save_figure(shown.draw(described), args.plot)
    if args.json:
        print_json({"what": args.what, "model": args.model, "measured_on": described, **shown.result.to_json()})
    else:
        print(described)
        print_table(shown.columns, shown.rows, left=(0,))
        print(shown.words)
    return 0


def _on_inputs(args: argparse.Namespace) -> tuple[Shown, str]:
    import dataclasses

    from stepsnet.cli.console import progress
    from stepsnet.cli.models_or_runs import load_any
    from stepsnet.errors import UsageError

    if args.data is not None:
        raise UsageError(f"--data is for paths and drops; {args.what} takes a run's data from where the run had it")
    with progress(f"{args.what} of {args.model}", None, "models") as bar:
        loaded = load_any(args.model, args.seed)
        if args.batch is not None:
            if "random" not in loaded.data:
                raise UsageError(f"--batch is for random inputs; {args.model} is looked at with {loaded.data}")
            loaded = dataclasses.replace(loaded, inputs=_resized(loaded.inputs, args.batch, args.seed), data=f"{args.batch} random inputs")
        shown = ON_INPUTS[args.what](loaded, args)
        bar.advance()
    init = getattr(loaded.model, "init", None)
    words = f"; initialisation: {'its own' if init == 'own' else init}" if init else ""
    return shown, f"{loaded.description}{words}"


def _resized(inputs: tuple[Any, ...], batch: int, seed: int) -> tuple[Any, ...]:
    """As many random inputs as asked for, like those that are there: the first dimension counts."""
    import torch

    def like(x: Any) -> Any:
        shape = (batch, *x.shape[1:])
        if batch <= len(x):
            return x[:batch]
        if x.is_floating_point():
            return torch.randn(shape, generator=generator)
        return x.flatten()[torch.randint(x.numel(), shape, generator=generator)]  # tokens drawn from tokens that were drawn evenly

    generator = torch.Generator().manual_seed(seed)
    return tuple(like(x) if isinstance(x, torch.Tensor) else x for x in inputs)


def _gamma(loaded: Loaded, args: argparse.Namespace) -> Shown:
    from stepsnet.analysis import shortcut_ratio

    found = shortcut_ratio(loaded.model, *loaded.inputs, start=args.start)
    columns = ("block", "γ", "σ_l", "all branches", "own branch", "cosine with z_0")
    lists = (found.gamma, found.sigma, found.residual_weight, found.branch_weight, found.cosine)
    words = f"Mean γ {found.mean:.3f} over {len(found.gamma)} blocks. Branches are σ(z_l - z_0)/σ_l and σ(z_l - z_(l-1))/σ_l."
    return Shown(found, columns, _by_block(found.block, found.stage, lists), words, lambda note: found.plot(note=note))


def _gradients(loaded: Loaded, args: argparse.Namespace) -> Shown:
    from stepsnet.analysis import gradient_flow
    from stepsnet.analysis.gradients import measure_flow

    if loaded.loss is None:
        found, loss = gradient_flow(loaded.model, *loaded.inputs, seed=args.seed), "cross-entropy against random classes"
    else:
        found, loss = measure_flow(loaded.model, loaded.loss, *loaded.inputs, seed=args.seed), "the run's own"
    columns = ("block", "∂ẑ_l/∂ẑ_0", "γ", "gain", "‖∂L/∂z_l‖", "‖∂L/∂weights‖")
    lists = (found.dz, found.gamma, found.gain, found.activation_norms, found.block_norms)
    steps = ", ".join(f"{step} {norm:.3g}" for step, norm in zip(found.steps, found.step_norms, strict=True))
    words = f"Loss {found.loss:.4g}, {loss}. ‖∂L/∂weights‖ by step: {steps}. Eq. 2 expects ∂ẑ_l/∂ẑ_0 = γ."
    return Shown(found, columns, _by_block(found.block, found.stage, lists), words, lambda note: found.plot(note=note))


def _contribution(loaded: Loaded, args: argparse.Namespace) -> Shown:  # noqa: ARG001
    from stepsnet.analysis import step_contribution

    found = step_contribution(loaded.model, *loaded.inputs)
    columns = ("step", "blocks", "‖update‖/‖z‖", "share of z", "‖z_0‖/‖z‖", "share of z_0")
    lists = (found.norm, found.share, found.z_0_norm, found.z_0_share)
    rows = [[step, str(blocks), *map(_number, values)] for step, blocks, *values in zip(found.steps, found.blocks, *lists, strict=True)]
    words = "z is the final state of the stage; the shares of z_0, the steps and the joins make 1."
    return Shown(found, columns, rows, words, lambda note: found.plot(note=note))


def _width(loaded: Loaded, args: argparse.Namespace) -> Shown:  # noqa: ARG001
    from stepsnet.analysis import width_use

    found = width_use(loaded.model, *loaded.inputs)
    columns = ("block", "effective rank", "of z_0", "at most", "use")
    lists = (found.rank, found.rank_0, found.limit, found.use)
    words = "exp(entropy) of the squared singular values, channels centred; at most the width, or the positions less one."
    return Shown(found, columns, _by_block(found.block, found.stage, lists), words, lambda note: found.plot(note=note))


def _on_metric(args: argparse.Namespace) -> tuple[Shown, str]:
    import dataclasses

    from stepsnet.analysis.states import macro_nets
    from stepsnet.cli.console import progress
    from stepsnet.data.config import EMBEDDED_KINDS
    from stepsnet.errors import UsageError
    from stepsnet.runs import folder as rundir
    from stepsnet.train.config import customise_resumed, read_config
    from stepsnet.train.distributed import Processes, choose_device
    from stepsnet.train.evaluate import trained_model
    from stepsnet.train.loader import ValidationBatches

    folder = Path(args.model).expanduser()
    if not rundir.is_run(folder):
        raise UsageError(
            f"{args.what} takes parts of a trained network away and looks at what its metric loses, so it needs the folder of a run, with "
            f"its validation data; {args.model} is none (`stepsnet runs` lists them)"
        )  # fmt: skip
    config = dataclasses.replace(read_config(folder), parallel="none")
    if args.data is not None and config.data.kind in EMBEDDED_KINDS:
        why = f"the data of {folder}, {config.data.kind}, are at hand wherever stepsnet is installed"
        raise UsageError(f"--data is for data that lie in a folder; {why}: leave it out")
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
            raise UsageError(f"{args.what} needs a metric that adds up over batches, and {metric} of {task.name} does not")
        return float(found[f"{metric}_sum"]), float(found["count"])

    batches = ValidationBatches(task, config.eval.batch_size or config.batch_size, config.workers, processes)
    steps = sum(len(net.widths) for net in macro_nets(model))
    passes = 1 + (steps if args.what == "drops" else 10)
    with progress(f"{args.what} of {args.model}", passes * len(batches), "batches") as bar:
        shown = ON_METRIC[args.what](model, _Watched(batches, bar), measure, metric)
    return shown, f"{folder}: {metric} on {len(task.valid):,} validation samples, without retraining"


class _Watched:
    """Batches that count, as often as they are gone through, each noticed by the bar."""

    def __init__(self, batches: ValidationBatches, bar: Bar) -> None:
        self.batches, self.bar = batches, bar

    def __iter__(self) -> Iterator[Batch]:
        for batch, counts in self.batches:
            if counts:
                yield batch
            self.bar.advance()


def _paths(model: Any, batches: _Watched, measure: Any, metric: str) -> Shown:
    from stepsnet.analysis import mask_paths

    found = mask_paths(model, batches, measure)
    rows = [[str(n), _number(slow), _number(fast)] for n, slow, fast in zip(found.sizes, found.slow, found.fast, strict=True)]
    words = "The first n (slow path) or the last n (fast path) channels of x are zero before the StepsNet (Table 6)."
    return Shown(found, ("n", f"slow path: {metric}", f"fast path: {metric}"), rows, words, lambda note: found.plot(metric, note=note))


def _drops(model: Any, batches: _Watched, measure: Any, metric: str) -> Shown:
    from stepsnet.analysis import drop_blocks

    found = drop_blocks(model, batches, measure)
    rows = [
        [step, str(count), f"{share:.1%}", _number(value)]
        for step, count, share, value in zip(found.steps, found.dropped, found.share, found.metric, strict=True)
    ]
    words = "The last blocks of one step at a time are left out, about as much computation from each (Table 7)."
    columns = ("step", "blocks left out", "of all blocks' weights", metric)
    return Shown(found, columns, rows, words, lambda note: found.plot(metric, note=note))


def _by_block(blocks: Sequence[int], stages: Sequence[int], lists: Sequence[Sequence[float]]) -> list[list[str]]:
    several = len(set(stages)) > 1
    names = [f"stage {stage + 1}, block {block}" if several else str(block) for block, stage in zip(blocks, stages, strict=True)]
    return [[name, *map(_number, values)] for name, *values in zip(names, *lists, strict=True)]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


ON_INPUTS: dict[str, Callable[[Loaded, argparse.Namespace], Shown]] = {
    "gamma": _gamma, "gradients": _gradients, "contribution": _contribution, "width": _width,
}  # fmt: skip
ON_METRIC: dict[str, Callable[[Any, _Watched, Any, str], Shown]] = {"paths": _paths, "drops": _drops}
