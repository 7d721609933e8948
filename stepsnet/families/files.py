"""Models in files: safetensors, with the model's name, options and plan and a format version in the header. Nothing is unpickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.families.model import Model
from stepsnet.families.registry import create_model
from stepsnet.macro.plan import StepPlan

FORMAT_VERSION = 1


def save_model(model: Model, path: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model that `create_model` made (or other `weights` for it, such as averaged ones). The file appears whole or not at all."""
    path = Path(path)
    config = model.default_cfg
    try:
        options = json.dumps(config["options"], default=_plain)
    except TypeError as error:
        raise UsageError(f"{path}: a model with parts of your own ({error}) cannot be rebuilt from a file; save its state_dict() instead") from error
    header = {"stepsnet_format": str(FORMAT_VERSION), "name": config["architecture"], "plan": model.plan, "options": options}
    tensors = {key: tensor.detach().contiguous() for key, tensor in (weights or model.state_dict()).items()}
    # Our own bytes, temporary file, fsync, rename: a crash leaves the old file or the new one, never half of one.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(safetensors.torch.save(tensors, metadata=header))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_model(path: str | Path, *, device: str | torch.device = "cpu", **options: Any) -> Model:
    """Rebuild a saved model with its weights; `options` override those it was made with (`drop_path_rate`, …)."""
    header = read_header(path)
    saved = json.loads(header["options"]) | {"plan": header["plan"]}
    model = create_model(header["name"], device="meta", **(saved | options))
    assert isinstance(model, Model)
    model.to_empty(device=device)
    load_weights(model, path)
    return model


def load_weights(model: Model, path: str | Path) -> None:
    """Fill a model from a file of ours or from a plain safetensors state dict; what does not fit is named."""
    read_header(path, ours=False)
    weights = safetensors.torch.load_file(path)
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if missing or unknown:
        what = f"lacks {missing[0]} ({len(missing)} in all)" if missing else f"has {unknown[0]} ({len(unknown)} in all), which the model has not"
        raise UsageError(f"{path} does not fit {model.default_cfg['architecture']} with plan '{model.plan}': it {what}")
    for key, tensor in weights.items():
        if tensor.shape != own[key].shape:
            raise UsageError(f"{path}: {key} is {tuple(tensor.shape)}, the model's {tuple(own[key].shape)}; give the same plan and sizes")
    model.load_state_dict(weights)


def read_header(path: str | Path, ours: bool = True) -> dict[str, str]:
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        raise UsageError(
            f"{path} is no safetensors file ({error}); pickled checkpoints can run code when they are read, so they are not: convert it first"
        ) from error
    if ours and "stepsnet_format" not in header:
        raise UsageError(f"{path} does not say which model it is for; use create_model(name, checkpoint_path=…)")
    if int(header.get("stepsnet_format", FORMAT_VERSION)) > FORMAT_VERSION:
        raise UsageError(f"{path} was written by a newer stepsnet (format {header['stepsnet_format']}, this one reads up to {FORMAT_VERSION}); upgrade")
    return header


def _plain(value: object) -> object:
    if isinstance(value, StepPlan):
        return str(value)
    raise TypeError(f"{value!r}")
