"""The configuration of a run: returned by a recipe, changed by `key=value`, saved in config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stepsnet.data.config import AugmentConfig, DataConfig
from stepsnet.dense.config import DetectConfig, SegmentConfig
from stepsnet.errors import UsageError
from stepsnet.runs import folder as runs
from stepsnet.tasks import TASKS
from stepsnet.train.typed import flat, from_dict, override, to_dict

MACHINE_KEYS = ("workers", "parallel", "device", "data.root", "data.valid", "checkpoint.every", "checkpoint.keep",
                "nonfinite", "nonfinite_limit", "eval.batch_size")  # fmt: skip
"""Keys that may change when a run is resumed: where and how it runs, not what it computes."""

MOST_WORKERS = 1024
_DENSE = ("detection", "segmentation")
_IMAGES = ("classification", *_DENSE)
_LABELS = ("classification", "language")
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "weights": _LABELS, "freeze": _LABELS, "smoothing": _LABELS, "backbone": _DENSE, "detect": ("detection",),
    "segment": ("segmentation",),
    "augment": ("classification",), "augment.flip": _IMAGES,
    "augment.color_jitter": ("classification", "segmentation"), "augment.scale": _DENSE,
    "augment.short_side": ("detection",), "data.img_size": _IMAGES, "data.crop_pct": ("classification",),
    "data.max_size": _DENSE, "data.annotations": ("detection",), "data.valid_annotations": ("detection",),
    "data.images": _DENSE,
    **{f"data.{key}": ("segmentation",) for key in ("masks", "mask_values", "void_values", "class_names")},
    **{f"data.{key}": ("language",) for key in ("seq_len", "stride", "valid_windows", "pattern")},
    "data.valid": _LABELS, "data.valid_fraction": (*_LABELS, "segmentation"),
}  # fmt: skip


_ONLY_WITH: dict[str, tuple[str, ...]] = {
    "optim.betas": ("optim.name", "adamw"), "optim.eps": ("optim.name", "adamw"),
    "optim.momentum": ("optim.name", "sgd"), "optim.nesterov": ("optim.name", "sgd"),
    "schedule.power": ("schedule.kind", "poly"), "schedule.drops": ("schedule.kind", "steps"),
    "schedule.end": ("schedule.kind", "cosine", "poly"),
    "nonfinite_limit": ("nonfinite", "skip"), "compile_backend": ("compile", "true"),
    "detect.norm": ("detect.heads", "cascade"), "detect.mask_convs": ("detect.masks", "true"),
    "augment.crop_min_scale": ("augment.crop", "resized"), "augment.crop_padding": ("augment.crop", "pad"),
}  # fmt: skip
"""Keys that have an effect with some values of another key only."""

_ONLY_IF_ON: dict[str, tuple[Callable[[Iterable[float]], bool], tuple[str, ...]]] = {
    "augment.randaugment_std": (all, ("augment.randaugment",)),
    "augment.mixup": (all, ("augment.mix_prob",)), "augment.cutmix": (all, ("augment.mix_prob",)),
    "augment.mix_prob": (any, ("augment.mixup", "augment.cutmix")),
    "augment.mix_switch": (all, ("augment.mixup", "augment.cutmix")),
    "schedule.start": (any, ("schedule.warmup_iters", "schedule.warmup_epochs")),
    "segment.auxiliary_channels": (all, ("segment.auxiliary_weight",)),
}
"""Keys that have an effect only if any of, or all of, some other keys are above 0."""

_ONLY_FOR_KINDS: dict[str, tuple[str, ...]] = {
    "data.strict": ("image_folder", "tiny_imagenet", "coco", "mask_folder", "text"),
    "data.valid": ("image_folder", "text", "tokens", "gutenberg"),
    "data.valid_fraction": ("image_folder", "mask_folder", "text", "tokens", "python_docs"),
    "data.pattern": ("text",),
}
"""Keys that only some readers of data use."""

_LENGTHS = (("iters", "epochs", "none"), ("epochs", "iters", "none"),
            ("schedule.warmup_iters", "schedule.warmup_epochs", "0"),
            ("schedule.warmup_epochs", "schedule.warmup_iters", "0"))  # fmt: skip
"""Keys that replace another key, and the value that turns this one off."""

_NOT_FOR_STEPIFIED = ("plan", "join", "macro", "weights", "freeze", "optim.layer_decay")


def tasks_of(key: str) -> tuple[str, ...]:
    """The tasks that use a key."""
    return _ONLY_FOR.get(key) or _ONLY_FOR.get(key.partition(".")[0], TASKS)


EVALUATION_KEYS = ("workers", "device", "data.root", "data.valid", "data.stride", "data.valid_windows",
                   "eval.batch_size")  # fmt: skip
"""Keys that may change when a run is evaluated: where it runs, which validation data are used, and how."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The `optim.*` keys."""

    name: Literal["adamw", "sgd"] = "adamw"
    """The optimiser."""
    lr_batch: int = 0
    """`lr` is for batches of this size and is scaled linearly to `batch_size`; 0: `lr` is not scaled."""
    weight_decay: float = 0.05
    """Not applied to biases, norms and the parameters of the model's `no_weight_decay()`."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW only."""
    eps: float = 1e-8
    """AdamW only."""
    momentum: float = 0.9
    """SGD only."""
    nesterov: bool = False
    """SGD only."""
    layer_decay: float = 1.0
    """Learning rate of a layer, relative to the layer after it; 1: all equal."""
    clip: float = 0.0
    """Maximum norm of the whole gradient; 0: not clipped."""
    ema: float = 0.0
    """Decay of the exponential moving average of the weights; 0: no average."""

    def __post_init__(self) -> None:
        for key in ("lr_batch", "weight_decay", "clip", "momentum", "eps"):
            if getattr(self, key) < 0:
                raise UsageError(f"optim.{key} is {getattr(self, key)}, but cannot be negative.")
        if not 0 <= self.ema < 1:
            raise UsageError(f"optim.ema is {self.ema}, but must be at least 0 (off) and below 1.")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"optim.layer_decay is {self.layer_decay}, but must be above 0 and at most 1 (off).")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"optim.betas is {self.betas}, but both must be at least 0 and below 1.")
        if self.nesterov and not self.momentum:
            raise UsageError("optim.nesterov=true has no effect with optim.momentum=0; it must be above 0.")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The `schedule.*` keys: the learning rate over the steps, relative to its peak."""

    kind: Literal["cosine", "poly", "steps", "constant"] = "cosine"
    """The shape of the decay after the warm-up."""
    warmup_epochs: float = 0.0
    """Linear warm-up in passes over the training data; replaces warmup_iters."""
    warmup_iters: int = 0
    """Linear warm-up in steps; replaces warmup_epochs."""
    start: float = 0.001
    """Learning rate at the first step of a warm-up, relative to `lr`."""
    end: float = 0.01
    """Learning rate at the last step, relative to `lr` (cosine and poly)."""
    power: float = 1.0
    """Exponent of `poly`."""
    drops: tuple[float, float] = (2 / 3, 11 / 12)
    """`steps`: fractions of the run after which the rate is divided by ten. Default: after epochs 8 and 11 of 12."""

    def __post_init__(self) -> None:
        for key in ("warmup_epochs", "warmup_iters", "start", "end", "power"):
            if getattr(self, key) < 0:
                raise UsageError(f"schedule.{key} is {getattr(self, key)}, but cannot be negative.")
        if not 0 <= self.drops[0] <= self.drops[1] <= 1:
            raise UsageError(f"schedule.drops is {self.drops}, but must be two growing fractions between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The `backbone.*` keys, for detection and segmentation."""

    weights: str = ""
    """Classification weights to start from: a run, a safetensors file, pretrained:NAME, timm:NAME or hf:FOLDER; empty:
    from scratch.
    """
    frozen_norm: bool | None = None
    """Whether the backbone's batch norms keep their statistics; none: only if `weights` are given."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The `eval.*` keys. The last step is always evaluated."""

    every: int | None = None
    """Steps between evaluations; none: once per epoch; 0: only at the end."""
    batch_size: int | None = None
    """Over all processes; none: as in training."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 0:
            raise UsageError(f"eval.every is {self.every}, but must be a number of steps, 0 (only at the end) "
                             "or none (once per epoch).")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"eval.batch_size is {self.batch_size}, but must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The `checkpoint.*` keys. The last step, Ctrl-C and SIGTERM always save."""

    every: int = 500
    """Steps between checkpoints; 0: only at the end."""
    keep: int = 1
    """How many of the newest checkpoints are kept."""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise UsageError(f"checkpoint.every is {self.every}, but must be a number of steps or 0 (at the end).")
        if self.keep < 1:
            raise UsageError(f"checkpoint.keep is {self.keep}, but must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run. Exactly one of `iters` and `epochs` sets its length."""

    recipe: str = ""
    """Set by the registry of recipes."""
    task: Literal["classification", "language", "detection", "segmentation"]
    """Set by the recipe."""
    model: str
    """A name of `stepsnet models`, or a folder of `stepsnet stepify` or `deepen`. The recipe's plan and model_args are
    those of its own model, so they do not apply to another."""
    plan: str | int | list[str] | None = None
    """Widths and blocks of the steps, as "192x12, 272x6, 384x6"; or a number of steps; none: the model's own."""
    join: str = "plain"
    """How new channels are joined: plain (Eq. 5) or matched_grad."""
    macro: str = "steps"
    """Narrow to wide (steps, Eq. 5) or wide to narrow (reverse, Eq. 6)."""
    model_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `create_model`, for example `model_args.embed_dim=64`."""
    weights: str = ""
    """What to start from: a run, a safetensors file, pretrained:NAME, timm:NAME or hf:FOLDER; empty: from scratch. For
    another number of classes the head is new. Without `model=`, a run or file of stepsnet also sets model, plan and
    join."""
    freeze: str = ""
    """The part that keeps its weights, from the input on: stem, stage1, stage2 …, body (all but the head), or a number
    of blocks; empty: nothing."""
    seed: int = 0
    """Random seed of initial weights, order of the data, augmentation and dropout."""
    iters: int | None = None
    """Length of the run in steps; replaces epochs."""
    epochs: float | None = None
    """Length of the run in passes over the training data; replaces iters."""
    batch_size: int
    """Samples per update, over all processes and accumulated parts."""
    accumulate: int = 1
    """Each process splits its share of a batch into this many parts, one after the other, to save memory."""
    lr: float
    """The highest learning rate of the schedule; see optim.lr_batch."""
    out: str = ""
    """The run folder; empty: runs/<recipe>-<model>-<number>."""
    workers: int = 0
    """Data loading processes per training process."""
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    """How the processes of torchrun share the work: copies of the model (ddp) or shards of it (fsdp)."""
    device: str = "auto"
    """cpu, cuda, cuda:1 …; auto: a GPU if there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: automatic mixed precision."""
    compile: bool = False
    """Compile the blocks with torch.compile."""
    compile_backend: str = "inductor"
    """The backend of torch.compile."""
    grad_checkpointing: bool = False
    """Compute the blocks again in the backward pass, to save memory."""
    drop_path: float = 0.0
    """Stochastic depth rate at the last block, growing linearly from 0 at the first."""
    smoothing: float = 0.0
    """Label smoothing."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """If loss or gradient is not finite: stop before the update, or skip the update and count it."""
    nonfinite_limit: int = 10
    """With nonfinite=skip: how many updates may be skipped before the run stops."""
    data: DataConfig
    backbone: BackboneConfig = BackboneConfig()
    detect: DetectConfig = DetectConfig()
    segment: SegmentConfig = SegmentConfig()
    augment: AugmentConfig = AugmentConfig()
    optim: OptimConfig = OptimConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def __post_init__(self) -> None:
        if (self.iters is None) == (self.epochs is None):
            raise UsageError("The length of a run is iters or epochs: give one of the two.")
        for key in ("iters", "epochs", "batch_size", "accumulate", "lr"):
            if getattr(self, key) is not None and getattr(self, key) <= 0:
                raise UsageError(f"{key} is {getattr(self, key)}, but must be above 0.")
        for key, most in (("nonfinite_limit", math.inf), ("seed", math.inf), ("workers", MOST_WORKERS)):
            if not 0 <= getattr(self, key) <= most:
                allowed = "cannot be negative" if most == math.inf else f"must be from 0 to {most}"
                raise UsageError(f"{key} is {getattr(self, key)}, but {allowed}.")
        if self.freeze and not self.weights:
            raise UsageError(f"freeze={self.freeze} would keep random weights; give weights to start from.")
        if self.seed >= 1 << 64:
            raise UsageError(f"seed is {self.seed}, but must fit into 64 bits.")
        for key in ("drop_path", "smoothing"):
            if not 0 <= getattr(self, key) < 1:
                raise UsageError(f"{key} is {getattr(self, key)}, but must be at least 0 and below 1.")
        if self.task == "segmentation" and self.parallel == "fsdp":
            raise UsageError("Segmentation evaluates images of different sizes one by one, which needs a whole model: "
                             "use parallel=ddp instead of parallel=fsdp.")
        if self.batch_size % self.accumulate:
            raise UsageError(f"batch_size={self.batch_size} cannot be split into accumulate={self.accumulate} parts.")

    @property
    def peak_lr(self) -> float:
        """The highest learning rate of the schedule, scaled to the batch size."""
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
    values = runs.read_settings(folder)
    try:
        return from_dict(TrainConfig, values)
    except UsageError as error:
        raise UsageError(f"{folder / runs.CONFIG} is not a configuration that this version reads: {error}") from error


def customise(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """`config` changed by `key=value` words. A length in steps replaces the recipe's in epochs, and vice versa.

    With `model=`, the recipe's own plan and `model_args` do not apply: they belong to the recipe's model.
    """
    given = {word.partition("=")[0] for word in words}
    if {"iters", "epochs"} <= given:
        raise UsageError("The length of a run is iters or epochs: give one of the two.")
    if "recipe" in given:
        raise UsageError("recipe cannot be changed: it is the first argument of `stepsnet train`.")
    for key in given:
        if config.task not in (tasks := tasks_of(key)):
            raise UsageError(f"{key} has no effect on {config.task}; it is for {' and '.join(tasks)}.")
    for key, other, off in _LENGTHS:
        if key in given and other not in given:
            words = [*words, f"{other}={off}"]
    if "model" in given:
        config = replace(config, plan=None, model_args={})
    config = override(config, words)
    for key in sorted(given):
        if (why := why_unused(config, key)) is not None:
            raise UsageError(f"{key} has no effect {why}.")
    _check_given(config, given)
    return config


def _check_given(config: TrainConfig, given: set[str]) -> None:
    """Refuse values without an effect. They are valid in a run folder, so the configuration itself accepts them."""
    warmups = {"schedule.warmup_iters", "schedule.warmup_epochs"}
    if warmups <= given and config.schedule.warmup_iters and config.schedule.warmup_epochs:
        raise UsageError(f"The length of a warm-up is {' or '.join(sorted(warmups))}: give one of the two.")
    short, long = config.data.img_size, config.data.max_size
    if config.task in _DENSE and given & {"data.img_size", "data.max_size"} and long < short:
        raise UsageError(f"data.max_size={long}, the limit of the long side, is below data.img_size={short}, the short "
                         "side; it must be at least as large.")
    smallest, largest, number = config.segment.scales
    if "segment.scales" in given and (number > 1) != (smallest < largest):
        wrong = f"is the same scale {number} times" if number > 1 else f"leaves out the scale {largest:g}"
        raise UsageError(f"segment.scales={smallest:g},{largest:g},{number} {wrong}; 1,1,1 is one scale, "
                         "0.5,1.75,6 are six scales.")
    if "augment.mix_switch" in given and config.augment.mix_switch in (0, 1):
        off = "augment.mixup" if config.augment.mix_switch else "augment.cutmix"
        raise UsageError(f"augment.mix_switch={config.augment.mix_switch:g} leaves {off} without effect; give {off}=0.")
    for key, norm in (("segment.norm", config.segment.norm), ("detect.norm", config.detect.norm)):
        if key in given and norm == "sync" and config.parallel == "none":
            raise UsageError(f"{key}=sync has no effect with parallel=none; it shares statistics between processes.")


def why_unused(config: TrainConfig, key: str) -> str | None:
    """Why other keys leave `key` without an effect, in words that follow "has no effect"; None if it has one."""
    values = flat(to_dict(config))
    if key in _NOT_FOR_STEPIFIED and runs.is_stepped(Path(config.model)):
        return f"on {config.model}: a model of `stepify` or `deepen` has its own plan and joins, and takes no {key}"
    if key in ("optim.layer_decay", "drop_path") and config.freeze == "body":
        return "with freeze=body, which trains the head only"
    if key in _ONLY_WITH:
        other, *needed = _ONLY_WITH[key]
        if (own := str(values[other]).lower()) not in needed:
            return f"with {other}={own}; it is for {other}={' or '.join(needed)}"
    if key in _ONLY_IF_ON:
        enough, others = _ONLY_IF_ON[key]
        if not enough(values[other] for other in others):
            both = enough is all and len(others) > 1
            return f"unless {(' and ' if both else ' or ').join(others)} {'are' if both else 'is'} above 0"
    if key in _ONLY_FOR_KINDS and config.data.kind not in (kinds := _ONLY_FOR_KINDS[key]):
        return f"with data.kind={config.data.kind}; it is for {', '.join(kinds)}"
    scale, short_side = config.augment.scale, config.augment.short_side
    if key == "augment.short_side" and short_side != (0, 0) and scale != (1.0, 1.0):
        return f"with augment.scale={scale[0]:g},{scale[1]:g}; it is for augment.scale=1,1"
    return None


def customise_resumed(
    config: TrainConfig, words: Sequence[str], allowed: Sequence[str] = MACHINE_KEYS
) -> TrainConfig:
    """The configuration of an existing run, changed in keys that do not change what it computes."""
    for word in words:
        key = word.partition("=")[0]
        if key not in allowed:
            raise UsageError(f"{key!r} cannot change in an existing run; only {', '.join(allowed)} can.")
    return customise(config, words)


