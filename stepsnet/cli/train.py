"""`stepsnet train RECIPE key=value …` and `stepsnet resume RUN`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import Bar, format_metrics, print_json, print_table, print_text, progress, say
from stepsnet.cli.options import refuse, refuse_repeated
from stepsnet.cli.resolve import find_run
from stepsnet.errors import RunFailed, UsageError
from stepsnet.report.table import Column, Table
from stepsnet.runs.folder import METRICS, SHIPPED, last_line
from stepsnet.train.recipes import RECIPES, explain
from stepsnet.units import counted, si, significant

if TYPE_CHECKING:
    from stepsnet.tasks.base import Batch
    from stepsnet.train.callbacks import AnyCallback
    from stepsnet.train.loader import ValidationBatches
    from stepsnet.train.trainer import Trainer, TrainResult

SUMMARY = "train a model with a recipe, in one process or many"
FAILED = 1
PREPARING = "preparing data and model"


def list_recipes() -> str:
    """One line per recipe: its name and the first sentence of its docstring."""
    width = max(map(len, RECIPES)) + 2
    sentences = {name: explain(name).partition(". ")[0].partition("\n")[0].rstrip(".") for name in RECIPES}
    return "\n".join(f"  {name:<{width}}{sentence}" for name, sentence in sentences.items())


DESCRIPTION = f"""\
Trains a model. A recipe sets data, model and all other keys; key=value changes any of them. The run folder (out)
holds everything about the run. Ctrl-C saves a checkpoint and stops; `stepsnet resume` continues.

Recipes:
{list_recipes()}

Common keys: model plan join weights seed iters|epochs batch_size lr out workers parallel data.root checkpoint.every.
--keys explains all keys, --dry-run shows their values for a run.

  stepsnet train digits
  stepsnet train --keys                      all keys: meaning, default, type, for which tasks
  stepsnet train digits --keys               the keys of one recipe and its values
  stepsnet train digits model=deit_tiny plan=3 join=matched_grad epochs=5 out=runs/deit
  stepsnet train cifar10 data.root=cifar10.npz model=steps_resnet18 --dry-run
  stepsnet train image_folder data.root=DIR weights=runs/first freeze=stem optim.layer_decay=0.75   fine-tune
  torchrun --nproc-per-node 8 -m stepsnet train imagenet_deit data.root=DIR model=steps_deit_small parallel=ddp"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", nargs="?", help="one of the recipes above; without it they are listed")
    add("words", nargs="*", default=[], metavar="key=value", help="a key to change; as many as needed")
    add("--dry-run", action="store_true", help="show configuration, model, data and steps; train nothing")
    add("--keys", action="store_true", help="explain all keys, or those of a recipe; train nothing")
    _add_track(parser)
    add("--json", action="store_true", help="print one object instead of text")


def _add_track(parser: argparse.ArgumentParser) -> None:
    words = "log to Weights & Biases or MLflow as well; may be repeated"
    parser.add_argument("--track", action="append", default=[], metavar="wandb|mlflow", help=words)


def run(args: argparse.Namespace) -> int:
    refuse_repeated(args.words)
    if args.keys:
        refuse(args, "dry-run", "track", because="has no effect with --keys, which trains nothing")
        return _print_keys(args.recipe, args.words, json=args.json)
    if args.recipe is None:
        refuse(args, "dry-run", "track", because="needs a recipe; `stepsnet train` lists them")
        if args.json:
            print_json({name: explain(name) for name in RECIPES})
        else:
            print_text(f"Recipes (stepsnet train RECIPE key=value …):\n{list_recipes()}")
        return 0
    from stepsnet.train.build import configure, preview
    from stepsnet.train.recipes import get_recipe
    from stepsnet.train.trainer import train

    config = configure(get_recipe(args.recipe), args.words)
    if args.dry_run:
        refuse(args, "track", because="has no effect with --dry-run, which trains nothing")
        with progress(PREPARING, unit=""):
            found = preview(config)
        print_json(found) if args.json else _print_preview(found)
        return 0
    return carry_out(lambda callbacks: train(config, callbacks), json=args.json, track=args.track)


def _print_keys(recipe: str | None, words: Sequence[str], *, json: bool) -> int:
    """Print the reference of all keys; with a recipe, of those that its task uses, with its values."""
    keys = list_keys(recipe, words)
    print_json(keys) if json else print_table(keys_table(keys, "default" if recipe is None else "value"))
    return 0


def list_keys(recipe: str | None = None, words: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All keys with default, type, tasks and meaning; with a recipe, those that its task uses, with its values."""
    from stepsnet.train.config import TrainConfig, customise, tasks_of
    from stepsnet.train.recipes import get_recipe
    from stepsnet.train.typed import flat, reference, to_dict

    keys: list[dict[str, Any]] = [
        {"key": key.name, "default": key.default and key.default[0], "required": key.default is None, "type": key.kind,
         "tasks": list(tasks_of(key.name)), "meaning": key.meaning}
        for key in reference(TrainConfig)
    ]  # fmt: skip
    if recipe is not None:
        config = customise(get_recipe(recipe), words)
        values = flat(to_dict(config)) | {"model_args": config.model_args}
        keys = [key | {"default": values[key["key"]]} for key in keys if config.task in key["tasks"]]
    return keys


def keys_table(keys: Sequence[dict[str, Any]], value: str = "default") -> Table:
    """The keys of `list_keys`, whose values are a "default" or the "value" in a recipe."""
    from stepsnet.tasks import TASKS

    rows = []
    for key in keys:
        default = "" if key["required"] and value == "default" else _in_words(key["default"])
        tasks = "all" if len(key["tasks"]) == len(TASKS) else ", ".join(key["tasks"])
        rows.append([key["key"], key["meaning"], default, key["type"], tasks])
    titles = {"meaning": 1, value: 2, "type": 4, "tasks": 3}
    texts = [Column(title, "text", priority) for title, priority in titles.items()]
    return Table((Column("key", "name"), *texts), rows)


KEYS_PAGE = """\
# All keys of `stepsnet train`

A recipe sets all keys; `key=value` changes one. `stepsnet train --keys` prints this table, and
`stepsnet train RECIPE --keys` the keys of one recipe with its values. If the column "default" has nothing, the recipe
must set the key; the word "empty" is the empty text. A key that the task of the recipe does not use is refused.
Generated from `stepsnet/train/config.py`; `tests/test_docs.py` compares the two.

"""


def keys_page() -> str:
    """The page docs/reference/keys.md."""
    return f"{KEYS_PAGE}{keys_table(list_keys()).markdown()}\n"


def _in_words(value: Any) -> str:
    """A value in the form of the command line."""
    if value in ("", [], {}):
        return "empty"
    if isinstance(value, (list, tuple)):
        return ",".join(f"{item:.4g}" if isinstance(item, float) else str(item) for item in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _print_preview(found: dict[str, Any]) -> None:
    from stepsnet.train.typed import flat

    model, steps, values = found["model"], found["steps"], flat(found["config"])
    print_text("\n".join(f"{key} = {_in_words(values[key])}" for key in found["used"]))
    print_text(
        f"\nmodel   {model['name']}, plan {model['plan']}: {model['blocks']} blocks, {model['layers']} layers, "
        f"{si(model['params'])} parameters, {si(model['macs'])} MACs per input"
    )
    if "start" in found:
        print_text(f"start   {found['start']}")
    print_text("data    " + ", ".join(f"{key} {value}" for key, value in found["data"].items()))
    per_epoch = f"{steps['per_epoch']:,} per epoch"
    unended = steps["warmup"] >= steps["total"]
    peak = f"{steps['peak_lr']:.3g}" + (f", because the warm-up has {steps['warmup']:,} steps" if unended else "")
    print_text(f"steps   {steps['total']:,} in all, {per_epoch}; highest learning rate {peak}")


class Resume:
    """`stepsnet resume RUN`."""

    SUMMARY = "continue a stopped or killed run from its latest checkpoint, bit-exactly"
    DESCRIPTION = """\
Continues a run from its latest checkpoint. The result is bit-exactly that of the uninterrupted run. Only keys that say
where and how it runs can change: workers, parallel, device, data.root, data.valid, checkpoint.every, checkpoint.keep,
nonfinite, nonfinite_limit, eval.batch_size. data.root is where the same data are now; it is saved. With another number
of processes the result differs: sums are rounded differently, a batch norm sees only its process's share of the batch,
and stochastic depth, dropout, Mixup and CutMix draw other random numbers.

A finished run is extended with iters or epochs. The learning rate then follows the schedule of a run of the new
length, so it may rise again.

  stepsnet resume runs/digits-test_steps_deit-1
  stepsnet resume runs/first workers=4 data.root=/another/place
  stepsnet resume runs/first iters=2000                          extends a finished run
  torchrun --nproc-per-node 2 -m stepsnet resume runs/first parallel=ddp"""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("run", help="the folder of the run")
        add("words", nargs="*", default=[], metavar="key=value", help="a key from the list above")
        _add_track(parser)
        add("--json", action="store_true", help="print one object instead of text")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from stepsnet.report.run import run_report
        from stepsnet.runs.folder import is_finished
        from stepsnet.train.trainer import resume

        refuse_repeated(args.words)
        if args.run.startswith(SHIPPED):
            raise UsageError(f"{args.run} comes with the package and cannot be continued; `stepsnet train` with "
                             f"weights={args.run} starts a new run from its weights.")
        folder = find_run(args.run)
        if is_finished(folder) and not args.words:
            refuse(args, "track", because=f"has no effect: {folder} has finished; iters=N or epochs=N extends it")
        if is_finished(folder) and not (folder / "report.html").exists():  # it was killed between its last two files
            run_report(folder)
        return carry_out(lambda callbacks: resume(folder, args.words, callbacks), json=args.json, track=args.track)


class Progress:
    """Loss, rate and time left on standard error; before the first step, how long the preparation takes."""

    def __init__(self) -> None:
        self._bar = Bar(PREPARING, None, "")

    def on_start(self, trainer: Trainer) -> None:
        from stepsnet.cpu import NO_BF16

        self.close()
        self._unit, self._rate = trainer.task.unit, 0.0
        trainer.through = self._count_batches
        if trainer.processes.precision(trainer.config.precision) != trainer.config.precision:
            say(NO_BF16)
        if trainer.model.started:
            say(str(trainer.model.started))
        if trainer.extended_from is not None:
            say(_describe_extension(trainer))
        self._bar = Bar(f"{trainer.out}: step", trainer.total_steps, "", done=trainer.step)

    def on_step(self, trainer: Trainer, step: int, metrics: Mapping[str, Any]) -> None:
        rate = metrics[self._unit] / max(metrics["seconds"], 1e-9)
        self._rate = 0.9 * self._rate + 0.1 * rate if self._rate else rate
        note = f"loss {metrics['loss']:.4g}  {significant(self._rate)} {self._unit}/s"
        self._bar.advance(step - self._bar.done, note=note)
        if step == trainer.total_steps:
            self._bar.print_line()

    def on_evaluate(self, trainer: Trainer, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        say(f"step {step}  validation: {format_metrics(metrics)}")

    def _count_batches(self, batches: ValidationBatches) -> Iterator[tuple[Batch, bool]]:
        for number, batch in enumerate(batches, start=1):
            yield batch
            self._bar.advance(0, note=f"validation batch {number}/{len(batches)}")

    def on_checkpoint(self, trainer: Trainer, step: int) -> None:
        """Nothing to show."""

    def on_end(self, trainer: Trainer) -> None:
        if skipped := trainer.task.train.skipped:
            say(f"{skipped} unreadable samples were skipped.")

    def close(self) -> None:
        self._bar.close()


def _describe_extension(trainer: Trainer) -> str:
    """How the learning rate of an extended run continues."""
    from stepsnet.train.optim import lr_share

    config, total = trainer.config, trainer.total_steps
    last = last_line(trainer.out / METRICS).get("lr", 0.0)
    following = config.peak_lr * lr_share(config.schedule, trainer.step, total, trainer.steps_per_epoch)
    return (
        f"Extends {trainer.out} from {trainer.extended_from} to {total} steps by the {config.schedule.kind} schedule "
        f"of a run of {total} steps: the learning rate continues with {following:.3g} (the last was {last:.3g})."
    )


def make_callbacks(track: Sequence[str] = ()) -> list[AnyCallback]:
    """The callbacks of a run that was started from the command line, besides `Progress`; with the trackers `track`."""
    from stepsnet.analysis import GammaRecorder
    from stepsnet.report.mistakes import record_mistakes
    from stepsnet.report.run import run_report
    from stepsnet.train.callbacks import Callback, TensorBoard, make_tracker

    class Report(Callback):
        """Writes report.html at the end, of a classifier with its mistakes."""

        def on_end(self, trainer: Trainer) -> None:
            record_mistakes(trainer)
            run_report(trainer.out)

    board: list[AnyCallback] = [TensorBoard()] if find_spec("tensorboard") else []
    return [GammaRecorder(), *board, *map(make_tracker, track), Report()]


def carry_out(run: Callable[[Sequence[AnyCallback]], TrainResult], *, json: bool, track: Sequence[str]) -> int:
    """Run with the callbacks of the command line and the trackers `track`, print the result, and return the exit code.

    0: finished; 1: failed; 128 + signal: stopped by a signal and saved.
    """
    from torch.distributed.elastic.multiprocessing.errors import record

    from stepsnet.train.distributed import launched

    first = os.environ.get("RANK", "0") == "0"
    callbacks = make_callbacks(track)
    shown = [Progress()] if first else []
    try:
        # `record`: torchrun shows the error that came first.
        result = (record(run) if launched() else run)([*shown, *callbacks])
    except RunFailed as failure:
        say(str(failure))
        return FAILED
    finally:
        for progress_bar in shown:  # also if the run was refused before it started
            progress_bar.close()
    assert result is not None  # `record` returns None only after SystemExit, which is not raised here
    if first and json:
        print_json({"out": str(result.out), "step": result.step, "total_steps": result.total_steps,
                    "finished": result.finished, "metrics": result.metrics})  # fmt: skip
    elif first and result.finished:
        print_text(f"Finished after {counted(result.step, 'step')}: {format_metrics(result.metrics)}.")
        print_text(f"Weights and curves are in {result.out}; report: {result.out / 'report.html'}.")
    elif first:
        print_text(f"Stopped at step {result.step} of {result.total_steps} and saved. Continue with:")
        print(f"  stepsnet resume {result.out}")
    return 0 if result.finished else 128 + (result.signal or 0)
