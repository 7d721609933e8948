"""Models in files: safetensors, with the model's name, options and plan and a format version in the header. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.macro.plan import StepPlan
from stepsnet.models.model import Model

FORMAT_VERSION = 1


def save_model(model: Model, path: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model that `create_model` made (or other `weights` for it, such as averaged ones). The file appears whole or not at all."""
    path = Path(path)
    if not model.default_cfg:
        raise UsageError(f"{path}: only a model that create_model made can be rebuilt from a file; save this one's state_dict() instead")
    if model.default_cfg.get("folded"):
        raise UsageError(f"{path}: a folded model is not saved; save the one it was made from, and fold it again when it is loaded")
    try:
        options = json.dumps(model.default_cfg["options"] | model.changed_options(), default=_plain)
    except TypeError as error:
        why = f"a model with a part of your own ({error}) cannot be rebuilt from a file"
        raise UsageError(f"{path}: {why}; save its state_dict() instead") from error
    header = {"stepsnet_format": str(FORMAT_VERSION), "name": model.default_cfg["architecture"], "plan": model.plan, "options": options}
    tensors = {key: tensor.detach().contiguous() for key, tensor in (model.state_dict() if weights is None else weights).items()}
    replace_file(path, safetensors.torch.save(tensors, metadata=header))


def load_weights(model: Model, path: str | Path, *, mmap: bool = False) -> None:
    """Fill a model from a file of ours or from a plain safetensors state dict; what does not fit is named.

    With `mmap`, a model on the meta device gets weights that lie in the file: nothing is copied but what the model lays out otherwise
    (ResNet's convolutions, channels-last), processes share its pages, and what one changes, in training say, becomes its own page by
    page. The file may be deleted or replaced, as `save_model` does, while the model lives; it must not be overwritten in place.
    """
    read_header(path, ours=False)
    weights = safetensors.torch.load_file(path)
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    fits = f"{path} does not fit {model.default_cfg.get('architecture', type(model).__name__)} with plan '{model.plan}'"
    if missing:
        raise UsageError(f"{fits}: it lacks {missing[0]} ({len(missing)} in all)")
    if unknown:
        raise UsageError(f"{fits}: it has {unknown[0]} ({len(unknown)} in all), which the model has not")
    for key, tensor in weights.items():
        if tensor.shape != own[key].shape:
            raise UsageError(f"{fits}: its {key} is {tuple(tensor.shape)}, the model's {tuple(own[key].shape)}")
    if mmap and all(tensor.is_meta for tensor in own.values()):
        model.load_state_dict({key: t if own[key].is_contiguous() else _laid_out(t, own[key]) for key, t in weights.items()}, assign=True)
    else:
        put_weights(model, weights)


def put_weights(model: Model, weights: Mapping[str, Tensor]) -> None:
    """Copy weights that fit into a model; one on the meta device takes on their device and type."""
    own = model.state_dict()
    if any(tensor.is_meta for tensor in own.values()):
        model.load_state_dict({key: _laid_out(tensor, own[key]) for key, tensor in weights.items()}, assign=True)
    else:
        model.load_state_dict(weights)


def _laid_out(tensor: Tensor, own: Tensor) -> Tensor:
    """A copy that lies in memory as the model's own does."""
    return torch.empty_like(own, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def read_header(path: str | Path, ours: bool = True) -> dict[str, str]:
    """The header of a safetensors file; with `ours`, one that says which model it is for."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        why = "a pickled checkpoint can run code when it is read, so none is: convert it first"
        raise UsageError(f"{path} is no safetensors file ({error}); {why}") from error
    if ours and "stepsnet_format" not in header:
        raise UsageError(f"{path} does not say which model it is for; use create_model(name, checkpoint_path=…)")
    version = header.get("stepsnet_format", str(FORMAT_VERSION))
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        raise UsageError(f"{path} was written by a newer stepsnet (format {version}, this one reads up to {FORMAT_VERSION}); upgrade")
    return header


def _plain(value: object) -> object:
    if isinstance(value, StepPlan):
        return str(value)
    raise TypeError(f"{value!r}")
