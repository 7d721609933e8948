"""Everything a run is, as one keyword-only record: what a recipe returns, what `key=value` changes, what config.json holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stepsnet.data.config import DataConfig
from stepsnet.data.images.augment import AugmentConfig
from stepsnet.dense.config import DetectConfig, SegmentConfig
from stepsnet.errors import UsageError
from stepsnet.runs import folder as runs
from stepsnet.train.typed import from_dict, override

MACHINE_KEYS = ("workers", "parallel", "device", "data.root", "data.valid", "checkpoint.every", "checkpoint.keep",
                "nonfinite", "nonfinite_limit", "eval.batch_size")  # fmt: skip
"""Keys that may change when a run is resumed: where and how it runs, not what it computes."""

EVALUATION_KEYS = ("data.stride", "data.valid_windows")
"""Keys that may also change when a run is evaluated: which validation data are used, and how."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The `optim.*` keys."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr_batch: int = 0
    """`lr` is meant for this many samples a step and scaled linearly to `batch_size`; 0: `lr` is used as it is."""
    weight_decay: float = 0.05
    """Not applied to biases, norms and whatever the model's `no_weight_decay()` names."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW only."""
    eps: float = 1e-8
    """AdamW only."""
    momentum: float = 0.9
    """SGD only."""
    nesterov: bool = False
    """SGD only."""
    layer_decay: float = 1.0
    """Each layer's learning rate is this times that of the layer after it; 1: all alike."""
    clip: float = 0.0
    """Largest norm of the whole gradient; 0: not clipped."""
    ema: float = 0.0
    """Decay of the running average of the weights; 0: none is kept."""

    def __post_init__(self) -> None:
        for key in ("lr_batch", "weight_decay", "clip", "momentum"):
            if getattr(self, key) < 0:
                raise UsageError(f"optim.{key} is {getattr(self, key)}, but cannot be negative.")
        if not 0 <= self.ema < 1:
            raise UsageError(f"optim.ema is {self.ema}, but a decay lies between 0 (off) and 1.")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"optim.layer_decay is {self.layer_decay}, but is above 0 and up to 1 (off).")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The `schedule.*` keys: the learning rate over the steps, as a share of its peak."""

    kind: Literal["cosine", "poly", "steps", "constant"] = "cosine"
    warmup_epochs: float = 0.0
    """Linear warm-up; the longer of this and `warmup_iters` holds."""
    warmup_iters: int = 0
    start: float = 0.001
    """The first step's share when there is a warm-up."""
    end: float = 0.01
    """The last step's share."""
    power: float = 1.0
    """Exponent of `poly`."""
    drops: tuple[float, float] = (2 / 3, 11 / 12)
    """`steps`: the parts of the run after which the rate falls to a tenth; detection's 1× schedule: epochs 8 and 11 of 12."""

    def __post_init__(self) -> None:
        for key in ("warmup_epochs", "warmup_iters", "start", "end"):
            if getattr(self, key) < 0:
                raise UsageError(f"schedule.{key} is {getattr(self, key)}, but cannot be negative.")
        if not 0 <= self.drops[0] <= self.drops[1] <= 1:
            raise UsageError(f"schedule.drops is {self.drops}, but names two growing parts of the run between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The `backbone.*` keys, of detection and segmentation."""

    weights: str = ""
    """Classification weights to start from: a run's folder or a file of weights; empty: from scratch."""
    frozen_norm: bool | None = None
    """Whether batch norms of the backbone keep their statistics; none: if they come with `weights`."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The `eval.*` keys. The last step is always evaluated."""

    every: int | None = None
    """Steps between evaluations; none: once an epoch; 0: only at the end."""
    batch_size: int | None = None
    """Over all processes; none: as in training."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 0:
            raise UsageError(f"eval.every is {self.every}, but is a number of steps, 0 (only at the end) or none (once an epoch).")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"eval.batch_size is {self.batch_size}, but must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The `checkpoint.*` keys. The last step, Ctrl-C and SIGTERM always save."""

    every: int = 500
    """Steps between checkpoints; 0: only at the end."""
    keep: int = 1
    """How many of the newest stay on disk."""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise UsageError(f"checkpoint.every is {self.every}, but is a number of steps, or 0 (only at the end).")
        if self.keep < 1:
            raise UsageError(f"checkpoint.keep is {self.keep}, but at least one checkpoint is kept.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run. Exactly one of `iters` and `epochs` says how long it is."""

    recipe: str = ""
    """Filled in by the registry of recipes."""
    task: Literal["classification", "language", "detection", "segmentation"]
    model: str
    plan: str | int | list[str] | None = None
    join: str = "plain"
    macro: str = "steps"
    model_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `create_model`, say `model_args.embed_dim=64`."""
    seed: int = 0
    iters: int | None = None
    epochs: float | None = None
    batch_size: int
    """Samples an update, over all processes and accumulated parts."""
    accumulate: int = 1
    """Into how many parts each process cuts its share of a batch, for the sake of memory."""
    lr: float
    out: str = ""
    """The run folder; empty: runs/<recipe>-<model>-<number>."""
    workers: int = 0
    """Processes that load data, for each training process."""
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: automatic mixed precision."""
    compile: bool = False
    compile_backend: str = "inductor"
    grad_checkpointing: bool = False
    drop_path: float = 0.0
    """Stochastic depth at the last block, growing linearly from the first."""
    smoothing: float = 0.0
    """Label smoothing."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What to do when loss or gradient is not finite: stop before the update, or leave the update out and count."""
    nonfinite_limit: int = 10
    """How many updates may be left out before the run stops all the same."""
    data: DataConfig
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)
    segment: SegmentConfig = field(default_factory=SegmentConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        if (self.iters is None) == (self.epochs is None):
            raise UsageError("A run is as long as either iters or epochs say: give one of the two.")
        for key in ("iters", "epochs", "batch_size", "accumulate", "lr"):
            if getattr(self, key) is not None and getattr(self, key) <= 0:
                raise UsageError(f"{key} is {getattr(self, key)}, but must be above 0.")
        for key in ("workers", "nonfinite_limit", "seed"):
            if getattr(self, key) < 0:
                raise UsageError(f"{key} is {getattr(self, key)}, but cannot be negative.")
        if not 0 <= self.drop_path < 1:
            raise UsageError(f"drop_path is {self.drop_path}, but a probability lies between 0 and 1.")
        if not 0 <= self.smoothing < 1:
            raise UsageError(f"smoothing is {self.smoothing}, but lies between 0 and 1.")
        if self.task == "segmentation" and self.parallel == "fsdp":
            raise UsageError("Segmentation judges pictures of unequal size one by one, which needs a whole model: take parallel=ddp.")
        if self.batch_size % self.accumulate:
            raise UsageError(f"batch_size={self.batch_size} cannot be cut into accumulate={self.accumulate} equal parts.")

    @property
    def peak_lr(self) -> float:
        """The learning rate at the top of the schedule, linearly scaled to the batch."""
        return self.lr * self.batch_size / self.optim.lr_batch if self.optim.lr_batch else self.lr

    @property
    def eval_batch_size(self) -> int:
        """Samples per validation batch, over all processes."""
        return self.eval.batch_size or self.batch_size

    def total_steps(self, steps_per_epoch: int) -> int:
        """The number of updates of the whole run."""
        return self.iters if self.iters is not None else max(1, round((self.epochs or 0) * steps_per_epoch))


def read_config(folder: Path) -> TrainConfig:
    """The configuration of the run in `folder`."""
    values = runs.read_config(folder)
    try:
        return from_dict(TrainConfig, values)
    except UsageError as error:
        raise UsageError(f"{folder / runs.CONFIG} is not a configuration that this version reads: {error}") from error


def customise(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """`config` with the user's `key=value` words: giving `iters` replaces the recipe's `epochs`, and the other way round."""
    given = {word.partition("=")[0] for word in words}
    if {"iters", "epochs"} <= given:
        raise UsageError("A run is as long as either iters or epochs say: give one of the two.")
    if "iters" in given:
        words = [*words, "epochs=none"]
    elif "epochs" in given:
        words = [*words, "iters=none"]
    return override(config, words)


def customise_resumed(config: TrainConfig, words: Sequence[str], allowed: Sequence[str] = MACHINE_KEYS) -> TrainConfig:
    """`config` of an existing run with changes that leave what it computes alone."""
    for word in words:
        key = word.partition("=")[0]
        if key not in allowed:
            raise UsageError(f"A run is resumed as it was started: {key!r} cannot change, only {', '.join(allowed)} can.")
    return override(config, words)


