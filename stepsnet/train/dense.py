"""A backbone of the zoo inside a detector or a segmenter, as a model that the loop can train and a file can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepsnet.cost import Cost, count_params
from stepsnet.dense.maps import deepest_of_each_resolution
from stepsnet.errors import UsageError
from stepsnet.models import FeatureBackbone, Model, VisionModel, create_model, load_model, load_weights
from stepsnet.models.files import read_header
from stepsnet.runs import folder as rundir
from stepsnet.tasks.base import DenseTask
from stepsnet.train.config import TrainConfig


class DenseModel(Model):
    """What a dense task builds around a backbone. Blocks, plans and layers are the backbone's; `network` holds it and runs it."""

    def __init__(self, backbone: FeatureBackbone, task: DenseTask, *, frozen_norm: bool) -> None:
        super().__init__()
        zoo = backbone.model
        self.family, self.plans, self.input_size, self.num_features = zoo.family, zoo.plans, zoo.input_size, zoo.num_features
        self._shape = zoo.closed_form()
        self._undecayed, self._stem = zoo.no_weight_decay(), zoo.stem_names()
        self._task = task
        self.network = task.network(backbone, frozen_norm=frozen_norm)
        (self._prefix,) = (f"{name}." for name, module in self.named_modules() if module is zoo)
        options = {**zoo.default_cfg["options"], "task": task.name, "facts": task.facts()}
        self.default_cfg = {**zoo.default_cfg, "architecture": f"{task.name}/{zoo.default_cfg['architecture']}", "options": options}

    def forward(self, *inputs: Any) -> Any:
        return self.network(*inputs)

    def forward_features(self, x: Tensor) -> Tensor:
        """The backbone's last map."""
        return self.get_submodule(self._prefix.rpartition(".model.")[0])(x)[-1]

    def no_weight_decay(self) -> set[str]:
        return {self._prefix + name for name in self._undecayed}

    def stem_names(self) -> tuple[str, ...]:
        return tuple(self._prefix + name for name in self._stem)

    def closed_form(self, input_size: tuple[int, ...] | None = None) -> Cost:  # noqa: ARG002  # a network's picture has the task's size
        """Blocks and layers of the backbone; parameters and MACs of the whole, for one picture of the task's size."""
        return Cost(self._shape.blocks, self._shape.layers, count_params(self), self._task.network_macs(self.network))

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.empty(1, *(input_size or self.input_size), device="meta")


def dense_model(config: TrainConfig, task: DenseTask, options: dict[str, Any], device: str | None, *, pretrained: bool) -> DenseModel:
    """The model of a dense task: a new backbone, or with `pretrained` the one of `backbone.weights` where that is given."""
    weights = config.backbone.weights if pretrained and device is None else ""
    model: Model
    if weights:
        path = _weights_file(weights)
        model = load_model(path, drop_path_rate=config.drop_path)
        name, plan = model.default_cfg["architecture"], model.plan
        if name != config.model:
            raise UsageError(f"backbone.weights={weights} is a {name}, not a {config.model}; give model={name} or other weights.")
        wanted = create_model(config.model, device="meta", **options).plan
        if wanted != plan:
            raise UsageError(f"backbone.weights={weights} has the plan '{plan}', but the run '{wanted}'; give plan='{plan}'.")
    else:
        model = create_model(config.model, device=device, **options)
    if not isinstance(model, VisionModel):
        raise UsageError(f"{config.model} takes text; {task.name} needs a model that takes pictures.")
    backbone = FeatureBackbone(model, deepest_of_each_resolution(model.feature_info.reduction()))
    frozen = config.backbone.frozen_norm
    with torch.device(device or torch.get_default_device()):
        return DenseModel(backbone, task, frozen_norm=bool(config.backbone.weights) if frozen is None else frozen)


def load_dense_weights(model: Model, task: DenseTask, weights: Path) -> None:
    """Fill a model from the file of a run of the same task; data with classes that the run has not learned are refused."""
    learned, given = read_facts(weights), task.facts()
    for key in ("classes", "category_ids"):
        if learned.get(key) != given.get(key):
            beyond = [value for value in given.get(key, []) if value not in learned.get(key, [])] or given.get(key)
            raise UsageError(f"{weights} has learned the {key} {learned.get(key)}, but the data have {beyond}.")
    load_weights(model, weights)


def read_facts(weights: Path) -> dict[str, Any]:
    """What a run wrote about its task into the header of its weights."""
    facts = json.loads(read_header(weights).get("options", "{}")).get("facts")
    if not isinstance(facts, dict):
        raise UsageError(f"{weights} does not say what its classes are called.")
    return facts


def _weights_file(given: str) -> Path:
    """A file, or the best one of a run's folder."""
    path = Path(given).expanduser()
    if not path.is_dir():
        return path
    for name in (rundir.WEIGHTS_EMA, rundir.WEIGHTS):
        if (path / name).is_file():
            return path / name
    raise UsageError(f"backbone.weights={given} is a folder without {rundir.WEIGHTS}: is it a finished run?")
