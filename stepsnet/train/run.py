"""A run from its configuration to its results: task, model, processes and folder put together around the loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepsnet.errors import UsageError
from stepsnet.files import explain_full_disk, finite, write_json
from stepsnet.models import Model, compile_blocks, cost_of, create_model, layer_ids, load_model, save_model
from stepsnet.runs import folder as rundir
from stepsnet.tasks import make_task
from stepsnet.tasks.base import Batch, DenseTask, Task
from stepsnet.train.callbacks import StepRecorder, TokenizerKeeper, Watcher
from stepsnet.train.checkpoint import Checkpoints, Weights, latest, read_weights
from stepsnet.train.config import DECIDED_BY_THE_JUDGE, DECIDED_BY_THE_MACHINE, TrainConfig, customise_resumed, read_config
from stepsnet.train.dense import DenseModel, dense_model, load_dense_weights
from stepsnet.train.distributed import Processes, choose_device, join_processes, launched, restarted, spread
from stepsnet.train.ema import WeightAverage
from stepsnet.train.evaluate import evaluate
from stepsnet.train.loader import BatchKeys, TrainingBatches, ValidationBatches
from stepsnet.train.loop import TrainState, autocast, fit
from stepsnet.train.optim import make_optimizer, parameter_groups
from stepsnet.train.signals import StopRequest, stop_on_signals
from stepsnet.train.tensors import full, model_tensors
from stepsnet.train.typed import to_dict


@dataclass(frozen=True)
class Result:
    """How a run ended, or was interrupted."""

    out: Path
    step: int
    total_steps: int
    finished: bool
    signal: int | None
    """The signal that stopped it, if one did."""
    metrics: dict[str, float]
    """What the last evaluation found."""


def train(config: TrainConfig, callbacks: Sequence[Watcher] = (), *, task: Task | None = None) -> Result:
    """Train a new run. Data and model are made, and what is wrong with them is said, before its folder is.

    After torchrun has restarted the processes, the run that was going on is continued. `task` replaces the one that the
    configuration describes, for data of your own.
    """
    with join_processes(config.parallel, config.device) as processes:
        parts = _Parts(config, task or task_of(config), processes)
        folder = processes.decide(lambda: _interrupted_folder(config) or rundir.new_folder(config.out, f"{config.recipe or config.task}-{config.model}"))
        with _alone_in(folder, processes):
            if processes.first and not rundir.is_run(folder):
                rundir.create(folder, to_dict(dataclasses.replace(config, out=str(folder))), _machine())
            return parts.run(folder, callbacks)


def resume(folder: Path, words: Sequence[str] = (), callbacks: Sequence[Watcher] = (), *, task: Task | None = None) -> Result:
    """Continue the run in `folder` from its latest checkpoint, or from the start if there is none; `words` may say where it runs now."""
    config = read_config(folder)
    if rundir.is_finished(folder):
        metrics = rundir.read_result(folder)
        step = metrics.pop("step")
        return Result(folder, step, step, True, None, metrics)
    if not launched():  # whatever it was started on, one process can go on with it
        config = dataclasses.replace(config, parallel="none")
    config = customise_resumed(config, words)
    with join_processes(config.parallel, config.device) as processes, _alone_in(folder, processes):
        return _Parts(config, task or task_of(config), processes).run(folder, callbacks)


def evaluate_run(
    folder: Path,
    words: Sequence[str] = (),
    *,
    ema: bool = False,
    through: Callable[[ValidationBatches], Iterable[tuple[Batch, bool]]] = iter,
    keep: Callable[[list[Any]], None] = lambda _: None,
) -> dict[str, float]:
    """Evaluate the run in `folder`: its final weights, or those of its latest checkpoint; with `ema` the averaged ones.

    `through` may wrap the batches, to watch them go by; `keep` gets the predictions of tasks that judge them all at once.
    """
    allowed = (*DECIDED_BY_THE_MACHINE, *DECIDED_BY_THE_JUDGE)
    config = customise_resumed(dataclasses.replace(read_config(folder), parallel="none"), words, allowed)
    if ema and not config.optim.ema:
        raise UsageError(f"{folder} kept no average of its weights: it was trained with optim.ema=0.")
    task, model = trained_model(folder, config, ema=ema)
    processes = Processes(device=choose_device(config.device))
    batches = ValidationBatches(task, config.eval.batch_size or config.batch_size, config.workers, processes)
    found = evaluate(model.to(processes.device), task, through(batches), processes, lambda: autocast(config, processes), keep=keep)
    assert found is not None  # nobody can ask to stop
    return found


def trained_model(folder: Path, config: TrainConfig, *, ema: bool = False) -> tuple[Task, Model]:
    """The task of the run in `folder` and its model with the final weights, or those of its latest checkpoint."""
    task = task_of(config)
    final = folder / (rundir.WEIGHTS_EMA if ema else rundir.WEIGHTS)
    if final.exists() and isinstance(task, DenseTask):
        model = model_of(config, task, pretrained=False)
        load_dense_weights(model, task, final)
    elif final.exists():
        model = load_model(final)
    elif (checkpoint := latest(folder / rundir.CHECKPOINTS)) is not None:
        model = model_of(config, task, pretrained=False)
        read_weights(checkpoint, model_tensors(model), ema=ema)
    else:
        raise UsageError(f"{folder} has neither final weights nor a checkpoint yet.")
    return task, model


def preview(config: TrainConfig) -> dict[str, Any]:
    """What `train` would do: the whole configuration, the model's cost, the data and the number of steps. Nothing is written."""
    task = task_of(config)
    model = model_of(config, task, "meta")
    cost = model.closed_form() if isinstance(model, DenseModel) else cost_of(model)
    per_epoch = BatchKeys(len(task.train), config.batch_size, config.seed, Processes()).batches_per_epoch
    steps = {"total": total_steps(config, per_epoch), "per_epoch": per_epoch, "peak_lr": config.peak_lr}
    costs = {"plan": model.plan, "blocks": cost.blocks, "layers": cost.layers, "params": cost.params, "macs": cost.macs}
    return {"config": to_dict(config), "model": {"name": config.model, **costs}, "data": task.describe(), "steps": steps}


def task_of(config: TrainConfig) -> Task:
    """The task that the configuration describes, its data read and checked."""
    parts = (config.task, config.data, config.augment, config.seed, config.smoothing)
    return make_task(*parts, detect=config.detect, segment=config.segment)


def model_of(config: TrainConfig, task: Task, device: str | None = None, *, pretrained: bool = True) -> Model:
    """The model that the configuration and the data describe; without `pretrained`, `backbone.weights` are left aside."""
    options: dict[str, Any] = {"plan": config.plan, "join": config.join, "macro": config.macro, "drop_path_rate": config.drop_path}
    options |= task.model_kwargs() | config.model_args
    if isinstance(task, DenseTask):
        model: Model = dense_model(config, task, options, device, pretrained=pretrained)
    else:
        model = create_model(config.model, device=device, **options)
    if not isinstance(model, Model):
        raise UsageError(f"{config.model} with model_args {config.model_args} is a backbone without a head, which cannot be trained alone.")
    model.set_grad_checkpointing(config.grad_checkpointing)
    return model


def total_steps(config: TrainConfig, steps_per_epoch: int) -> int:
    """How many updates the run has."""
    return config.iters if config.iters is not None else max(1, round((config.epochs or 0) * steps_per_epoch))


class _Parts:
    """What a run needs besides its folder."""

    def __init__(self, config: TrainConfig, task: Task, processes: Processes) -> None:
        share = config.batch_size // processes.world
        if config.accumulate > share:
            raise UsageError(f"accumulate={config.accumulate} is more parts than the {share} samples that a process has of each batch.")
        self.config, self.task, self.processes = config, task, processes
        self.keys = BatchKeys(len(task.train), config.batch_size, config.seed, processes)
        self.model, self.forward = spread(lambda device: model_of(config, task, device), processes, seed=config.seed)
        if config.compile:
            assert isinstance(self.model, Model)
            compile_blocks(self.model, backend=config.compile_backend)
        self.optimizer = make_optimizer(config.optim, _groups(self.model, config), config.peak_lr)
        self.tensors = model_tensors(self.model)
        self.ema = WeightAverage(self.tensors, config.optim.ema) if config.optim.ema else None

    def run(self, folder: Path, callbacks: Sequence[Watcher]) -> Result:
        """Train in `folder`, from its latest checkpoint on."""
        config, processes = self.config, self.processes
        per_epoch = self.keys.batches_per_epoch
        state = TrainState(
            config=config, task=self.task, model=self.model, forward=self.forward, optimizer=self.optimizer, ema=self.ema,
            processes=processes, out=folder, total_steps=total_steps(config, per_epoch), steps_per_epoch=per_epoch,
        )
        supply = TrainingBatches(self.task, self.keys, config.workers)
        with stop_on_signals(launched=processes.world > 1) as request, closing(supply) as batches:
            watchers = [StepRecorder(), TokenizerKeeper(), *callbacks] if processes.first else []
            around = _Around(state, self.tensors, batches, request, watchers)
            around.load()
            with around.watched():
                finished = fit(state, batches, around, around.callbacks)
                if finished:
                    around.finish()
        return Result(folder, state.step, state.total_steps, finished, request.signal, state.metrics)


class _Around:
    """What surrounds the loop: checkpoints, evaluation, callbacks, signals."""

    def __init__(
        self, state: TrainState, tensors: dict[str, torch.Tensor], batches: TrainingBatches, request: StopRequest, callbacks: list[Watcher]
    ) -> None:
        self.state, self.batches, self.request, self.callbacks = state, batches, request, callbacks
        self.weights = Weights(tensors, state.ema.tensors if state.ema else {}, state.optimizer)
        self.checkpoints = Checkpoints(state.out / rundir.CHECKPOINTS, state.config.checkpoint.keep, state.processes)
        size = state.config.eval.batch_size or state.config.batch_size
        self.validation = ValidationBatches(state.task, size, state.config.workers, state.processes)

    def load(self) -> None:
        """Take up the run where its latest checkpoint left it, if there is one."""
        state = self.state
        if (found := self.checkpoints.load(self.weights)) is not None:
            state.step, facts = found
            state.left_out = facts["left_out"]
            self.batches.resume(state.step, facts["loader"])
        lines = state.processes.decide(lambda: rundir.read_lines(state.out / rundir.EVALUATIONS))
        for line in lines:
            if line["step"] <= state.step:
                state.evaluated = line.pop("step")
                state.metrics = line

    def save(self) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(self.state, self.state.step)
        facts = {"left_out": self.state.left_out, "loader": self.batches.state_dict()}
        self.checkpoints.save(self.state.step, self.weights, facts)

    def stop_requested(self) -> bool:
        return bool(self.request)

    def evaluate(self) -> dict[str, float] | None:
        state = self.state
        state.processes.share_buffers(state.model)
        found = self._evaluate()
        if found is None or state.ema is None:
            return found
        with state.ema.in_the_model():
            averaged = self._evaluate()
        return None if averaged is None else found | {f"ema_{name}": value for name, value in averaged.items()}

    def _evaluate(self) -> dict[str, float] | None:
        state = self.state
        return evaluate(state.model, state.task, self.validation, state.processes, state.autocast, self.stop_requested)

    def finish(self) -> None:
        """Write the final weights, mark the run as finished, and tell the callbacks."""
        state = self.state
        for name, tensors in ((rundir.WEIGHTS, self.weights.model), (rundir.WEIGHTS_EMA, self.weights.ema)):
            whole = {key: full(tensor).cpu() for key, tensor in tensors.items()}  # by every process: a sharded tensor needs them all
            if whole and state.processes.first:
                size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
                with explain_full_disk(state.out / name, size, f"The last checkpoint in {state.out / rundir.CHECKPOINTS} is intact."):
                    assert isinstance(state.model, Model)
                    save_model(state.model, state.out / name, whole)
        if state.processes.first:
            write_json(state.out / rundir.RESULT, {"step": state.step, **finite(state.metrics)})
        for callback in self.callbacks:
            callback.on_end(state)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Callbacks from start to close."""
        try:
            for callback in self.callbacks:
                callback.on_start(self.state)
            yield
        finally:
            for callback in self.callbacks:
                callback.close()


def _groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    assert isinstance(model, Model)
    layers = layer_ids(model) if config.optim.layer_decay < 1 else None
    return parameter_groups(
        model, config.optim.weight_decay, undecayed=model.no_weight_decay(), layer_decay=config.optim.layer_decay, layers=layers
    )


def _interrupted_folder(config: TrainConfig) -> Path | None:
    """The folder of the run that torchrun has just restarted: `out`, or the newest unfinished one of the same configuration."""
    if not restarted():
        return None
    if config.out:
        return Path(config.out) if rundir.is_run(Path(config.out)) else None
    runs = sorted(Path("runs").glob(f"*/{rundir.CONFIG}"), key=lambda path: path.stat().st_mtime, reverse=True)
    same = (path.parent for path in runs if dataclasses.replace(read_config(path.parent), out="") == config)
    return next((folder for folder in same if not rundir.is_finished(folder)), None)


def _machine() -> dict[str, Any]:
    """Facts about torch for environment.json."""
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "cuda": cuda}


@contextmanager
def _alone_in(folder: Path, processes: Processes) -> Iterator[None]:
    """The first process locks the folder for all."""
    if not processes.first:
        yield
        return
    with rundir.only_one_trainer(folder):
        yield
