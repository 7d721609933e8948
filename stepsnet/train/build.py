"""From a recipe and `key=value` words to a configuration; from a configuration to its task, model and optimiser."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.cost import Cost, count_params
from stepsnet.data.unused import unused_keys
from stepsnet.errors import UsageError, nearest
from stepsnet.integrations.pretrained import match_weights, options_of
from stepsnet.models import (
    FeatureBackbone,
    Model,
    VisionModel,
    create_model,
    freeze,
    get_variant,
    layer_ids,
    load_weights,
)  # fmt: skip
from stepsnet.models.design import has_steps
from stepsnet.models.files import read_header
from stepsnet.models.registry import VARIANTS
from stepsnet.runs.folder import WEIGHTS, is_stepped, new_folder
from stepsnet.surgery.adopted import adopt
from stepsnet.tasks import TASKS
from stepsnet.tasks.base import DenseTask, Task
from stepsnet.train.config import TrainConfig, customise, tasks_of, why_unused
from stepsnet.train.distributed import Processes
from stepsnet.train.loader import BatchKeys
from stepsnet.train.optim import lr_share, warmup_steps
from stepsnet.train.typed import flat, to_dict

SET_BY = {
    "model": "model=", "plan": "plan=", "join": "join=", "macro": "macro=", "num_classes": "the data",
    "img_size": "data.img_size=", "in_chans": "the data", "drop_path_rate": "drop_path=", "vocab_size": "the data",
    "seq_len": "data.seq_len=", "task": "the recipe", "facts": "the data",
}  # fmt: skip
"""Options in a weights file that are no `model_args`, and what sets them."""


def configure(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """`config` changed by `key=value` words. Without `model=`, `weights=` of a run or file also sets the model."""
    config = customise(config, words)
    given = {word.partition("=")[0] for word in words}
    if "model" in given and "join" not in given and config.model in VARIANTS:
        config = dataclasses.replace(config, join=VARIANTS[config.model].options.get("join", "plain"))
    for key, why in unused_keys(config.data).items():
        if key in given:
            raise UsageError(f"{key} has no effect {why}.")
    free = ("img_size",) if config.task in tasks_of("backbone") else ()  # these tasks take images of any size
    for option, setter in SET_BY.items():
        if option in config.model_args and given & {"model_args", f"model_args.{option}"} and option not in free:
            raise UsageError(f"model_args.{option} cannot be given: {option} is set by {setter}.")
    if not config.weights or "model" in given or (options := options_of(config.weights)) is None:
        return config
    kept = {key: options[key] for key in ("model", "plan", "join", "macro") if key in options and key not in given}
    arguments = {key: value for key, value in options.items() if key not in SET_BY}
    return dataclasses.replace(config, **kept, model_args=arguments | config.model_args)


def task_of(config: TrainConfig) -> Task:
    """The task of a configuration. Its data are read and checked here."""
    data, augment, seed, smoothing = config.data, config.augment, config.seed, config.smoothing
    if config.task == "classification":
        from stepsnet.data.images.readers import load_images
        from stepsnet.tasks.classification import Classification

        return Classification(load_images(data), data, augment, seed=seed, smoothing=smoothing)
    if config.task == "language":
        from stepsnet.data.text.corpora import load_text
        from stepsnet.tasks.language import Language

        return Language(load_text(data), data, seed=seed, smoothing=smoothing)
    if config.task == "detection":
        from stepsnet.data.dense.coco import load_coco
        from stepsnet.tasks.detection import Detection

        return Detection(load_coco(data, masks=config.detect.masks), data, augment, config.detect, seed=seed)
    if config.task == "segmentation":
        from stepsnet.data.dense.masks import load_mask_folder
        from stepsnet.tasks.segmentation import Segmentation

        return Segmentation(load_mask_folder(data), data, augment, config.segment, seed=seed)
    raise UsageError(f"There is no task {config.task!r}{nearest(config.task, TASKS)}; there are {', '.join(TASKS)}.")


def model_of(config: TrainConfig, task: Task, device: str | None = None, *, pretrained: bool = True) -> Model:
    """The model of a configuration and its data. Without `pretrained`, no other weights are loaded into it.

    On the meta device nothing is loaded, but `model.started` says what would be.
    """
    if is_stepped(config.model):
        return _adopted(config, task, device)
    if (own := Path(config.model).expanduser() / WEIGHTS).is_file():
        raise UsageError(f"{config.model} holds weights of a model of stepsnet: give weights={own} instead of model=.")
    options: dict[str, Any] = {"plan": config.plan, "join": config.join, "macro": config.macro}
    options |= {"drop_path_rate": config.drop_path} | task.model_kwargs() | config.model_args
    takes_images = issubclass(get_variant(config.model).family, VisionModel)
    if takes_images != (config.task != "language"):
        takes, needs = ("images", "text") if takes_images else ("text", "images")
        raise UsageError(f"{config.model} takes {takes}; {config.task} needs a model that takes {needs}.")
    if isinstance(task, DenseTask):
        model: Model = _dense_model(config, task, options, device, pretrained=pretrained)
    else:
        model = create_model(config.model, device=device, **options)
        if config.weights and pretrained:
            _refuse_another_vocabulary(config, task)
            _start(model, config.weights)
    if not isinstance(model, Model):
        raise UsageError(f"{config.model} with model_args {config.model_args} is a backbone without a head, "
                         "which cannot be trained alone.")
    model.set_grad_checkpointing(config.grad_checkpointing)
    if config.freeze:
        freeze(model, config.freeze)
    return model


def _start(model: Model, source: str) -> None:
    weights, model.started = match_weights(model, source)
    if not any(tensor.is_meta for tensor in model.state_dict().values()):
        model.load_state_dict(model.state_dict() | weights)


def _refuse_another_vocabulary(config: TrainConfig, task: Task) -> None:
    """A language model knows the meaning of its own tokens only."""
    from stepsnet.data.text.trained import vocabulary_of

    own, path = getattr(task, "vocabulary", None), Path(config.weights).expanduser()
    if own is not None and path.exists() and vocabulary_of(path).identity != own.identity:
        raise UsageError(f"weights={config.weights} was trained with another tokenizer than that of the data.")


def _adopted(config: TrainConfig, task: Task, device: str | None) -> Model:
    """The model in a folder of `stepsnet stepify` or `deepen`, with its weights."""
    refused = {
        f"plan={config.plan}": config.plan is not None, f"join={config.join}": config.join != "plain",
        f"macro={config.macro}": config.macro != "steps", f"model_args={config.model_args}": bool(config.model_args),
        f"optim.layer_decay={config.optim.layer_decay}": config.optim.layer_decay < 1,
        "parallel=fsdp": config.parallel == "fsdp", f"task={config.task}": isinstance(task, DenseTask),
        f"weights={config.weights}": bool(config.weights), f"freeze={config.freeze}": bool(config.freeze),
    }  # fmt: skip
    if wrong := [word for word, given in refused.items() if given]:
        what = "is a model of another library, changed by `stepify` or `deepen`"
        raise UsageError(f"{config.model} {what}; it does not take {wrong[0]}.")
    model = adopt(config.model, drop_path=config.drop_path, **task.model_kwargs())
    model.started = f"Started from the weights in {config.model}."
    model.set_grad_checkpointing(config.grad_checkpointing)
    return model if device is None else model.to(device)


def optimizer_of(config: TrainConfig, model: Model) -> torch.optim.Optimizer:
    """AdamW or SGD over the parameter groups of a model, with one call per group.

    (torch's fused SGD does not support sharded tensors.)
    """
    optim = config.optim
    layers = layer_ids(model) if optim.layer_decay < 1 else None
    groups = parameter_groups(
        model, optim.weight_decay, undecayed=model.no_weight_decay(), layer_decay=optim.layer_decay, layers=layers
    )
    if optim.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.peak_lr, betas=optim.betas, eps=optim.eps, fused=True)
    return torch.optim.SGD(groups, lr=config.peak_lr, momentum=optim.momentum, nesterov=optim.nesterov, foreach=True)


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    undecayed: Collection[str] = (),
    layer_decay: float = 1.0,
    layers: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """One group for each pair of weight decay and relative learning rate ("lr_share") that occurs.

    Vectors (biases, norms, scales) and the parameters in `undecayed` have no weight decay. With `layers` (0: the stem,
    the largest number: the head), the learning rate k layers below the head is multiplied by `layer_decay` ** k.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    last = max(layers.values()) if layers else 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = 0.0 if parameter.ndim <= 1 or name in undecayed or name.endswith(".bias") else weight_decay
        share = layer_decay ** (last - layers[name]) if layers else 1.0
        groups.setdefault((decay, share), []).append(parameter)
    return [{"params": members, "weight_decay": decay, "lr_share": share} for (decay, share), members in groups.items()]


def unused_by(model: Model) -> dict[str, str]:
    """Keys that a model leaves without an effect, and why."""
    one_step = f"the plan {model.plan} has one step per stage; give plan= or a model with steps"
    found = {} if has_steps(model.plan) else {"join": one_step, "macro": one_step}
    if isinstance(model, DenseModel) and not model.has_batch_norms():
        name = model.default_cfg["architecture"].rpartition("/")[2]
        found["backbone.frozen_norm"] = f"{name} has no batch norms; it is for ResNets"
    return found


def check_new_run(config: TrainConfig, model: Model) -> None:
    """Refuse values of keys that have no effect on the model of a new run.

    With `weights`, join and macro may come from their file, and a difference from it is refused when they are loaded.
    """
    usual = {"backbone.frozen_norm": None} | ({} if config.weights else {"join": "plain", "macro": "steps"})
    values = flat(to_dict(config))
    for key, why in unused_by(model).items():
        if key in usual and values[key] != usual[key]:
            raise UsageError(f"{key}={str(values[key]).lower()} has no effect: {why}.")


def preview(config: TrainConfig) -> dict[str, Any]:
    """What `train` would do: configuration, cost of the model, data and number of steps. Nothing is written."""
    new_folder(config.out, "")  # refuses one that is in use
    task = task_of(config)
    model = model_of(config, task, "meta")
    check_new_run(config, model)
    cost = model.cost()
    per_epoch = BatchKeys(len(task.train), config.batch_size, config.seed, Processes()).batches_per_epoch
    total, warmup = config.total_steps(per_epoch), warmup_steps(config.schedule, per_epoch)
    highest = config.peak_lr * lr_share(config.schedule, min(warmup, total - 1), total, per_epoch)
    steps = {"total": total, "per_epoch": per_epoch, "warmup": warmup, "peak_lr": highest}
    costs = {"plan": model.plan, "blocks": cost.blocks, "layers": cost.layers, "params": cost.params, "macs": cost.macs}
    named = {"name": config.model, **costs}
    start = {"start": str(model.started)} if model.started else {}
    unused = unused_by(model).keys() | unused_keys(config.data).keys()
    used = [
        key for key in flat(to_dict(config))
        if config.task in tasks_of(key) and key not in unused and why_unused(config, key) is None
    ]  # fmt: skip
    settings = {"config": to_dict(config), "used": used}
    return {**settings, "model": named, **start, "data": task.describe(), "steps": steps}


class DenseModel(Model):
    """The network of a dense task around a backbone. Blocks, plans and layers are those of the backbone."""

    def __init__(self, backbone: FeatureBackbone, task: DenseTask, *, frozen_norm: bool) -> None:
        super().__init__()
        inner = backbone.model
        self.family, self.plans, self.input_size = inner.family, inner.plans, inner.input_size
        self.num_features = inner.num_features
        self._shape = inner.count_blocks(), inner.count_layers()
        self._undecayed, self._stem = inner.no_weight_decay(), inner.stem_names()
        self._task = task
        self.network = task.network(backbone, frozen_norm=frozen_norm)
        (self._prefix,) = (f"{name}." for name, module in self.named_modules() if module is inner)
        name = f"{task.name}/{inner.default_cfg['architecture']}"
        options = {**inner.default_cfg["options"], "task": task.name, "facts": task.facts()}
        self.default_cfg = {**inner.default_cfg, "architecture": name, "options": options}

    def forward(self, *inputs: Any) -> Any:
        return self.network(*inputs)

    def has_batch_norms(self) -> bool:
        """Whether the backbone has any."""
        backbone = self.get_submodule(self._prefix.rstrip("."))
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in backbone.modules())

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature map of the backbone."""
        return self.get_submodule(self._prefix.rpartition(".model.")[0])(x)[-1]

    def no_weight_decay(self) -> set[str]:
        return {self._prefix + name for name in self._undecayed}

    def stem_names(self) -> tuple[str, ...]:
        return tuple(self._prefix + name for name in self._stem)

    def cost(self, input_size: tuple[int, ...] | None = None) -> Cost:  # noqa: ARG002  # the task sets the size
        """Blocks and layers of the backbone; parameters and MACs of the whole network, for one image of the task."""
        return Cost(*self._shape, count_params(self), self._task.network_macs(self.network))

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.empty(1, *(input_size or self.input_size), device="meta")


def _dense_model(
    config: TrainConfig, task: DenseTask, options: dict[str, Any], device: str | None, *, pretrained: bool
) -> DenseModel:
    """The model of a dense task, with a new backbone or, with `pretrained`, the one of `backbone.weights`."""
    from stepsnet.dense.maps import deepest_of_each_resolution

    model = create_model(config.model, device=device, **options)
    weights, frozen = config.backbone.weights, config.backbone.frozen_norm
    if weights and pretrained:
        _start(model, weights)
    assert isinstance(model, VisionModel)
    backbone = FeatureBackbone(model, deepest_of_each_resolution(model))
    with torch.device(device or torch.get_default_device()):
        whole = DenseModel(backbone, task, frozen_norm=bool(weights) if frozen is None else frozen)
    whole.started = model.started
    return whole


def load_dense_weights(model: Model, task: DenseTask, weights: Path) -> None:
    """Load the weights of a run of the same task. Data with other classes than the run's are an error."""
    learned, given = read_facts(weights), task.facts()
    for key in ("classes", "category_ids"):
        if learned.get(key) != given.get(key):
            beyond = [value for value in given.get(key, []) if value not in learned.get(key, [])] or given.get(key)
            raise UsageError(f"{weights} was trained on the {key} {learned.get(key)}, but the data have {beyond}.")
    load_weights(model, weights)


def read_facts(weights: Path) -> dict[str, Any]:
    """The facts about the task, class names above all, in the header of a weights file."""
    facts = json.loads(read_header(weights).get("options", "{}")).get("facts")
    if not isinstance(facts, dict):
        raise UsageError(f"{weights} does not name its classes.")
    return facts
