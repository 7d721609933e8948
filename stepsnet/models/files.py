"""Models in safetensors files. The header has name, options, plan and a format version. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.macro.plan import StepPlan
from stepsnet.models.model import Model
from stepsnet.runs.folder import WEIGHTS

FORMAT_VERSION = 1
CONVERT = 'safetensors.torch.save_file(torch.load("FILE", weights_only=True), "w.safetensors")'


def save_model(model: Model, path: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model that `create_model` made, or other `weights` for it, such as averaged ones. The write is atomic."""
    path = Path(path)
    if not model.default_cfg:
        raise UsageError(f"{path}: only models from create_model can be saved; save this one's state_dict() instead")
    if model.default_cfg.get("folded"):
        raise UsageError(
            f"{path}: a folded model cannot be saved; save the one it was made from, and fold it again after loading"
        )
    header = {
        "stepsnet_format": str(FORMAT_VERSION),
        "name": model.default_cfg["architecture"],
        "plan": model.plan,
        "options": options_of(model),
    }
    tensors = {
        key: tensor.detach().contiguous()
        for key, tensor in (model.state_dict() if weights is None else weights).items()
    }
    replace_file(path, safetensors.torch.save(tensors, metadata=header))


def options_of(model: Model) -> str:
    """The options that rebuild a model, as JSON."""
    try:
        return json.dumps(model.default_cfg["options"] | model.changed_options(), default=_plain)
    except TypeError as error:
        why = f"a model with a part of your own ({error}) cannot be rebuilt from a file"
        raise UsageError(f"{why}; save its state_dict() instead") from error


def weights_file(path: str | Path, names: Sequence[str] = (WEIGHTS,)) -> Path:
    """`path`, or the first of the files `names` in it if it is the folder of a run."""
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    for name in names:
        if (path / name).is_file():
            return path / name
    raise UsageError(f"{path} is a folder without {WEIGHTS}; give a file, or the folder of a finished run")


def load_weights(model: Model, path: str | Path, *, mmap: bool = False) -> None:
    """Fill a model from a file of `save_model` or from any safetensors state dict with the same keys and shapes.

    With `mmap`, a model on the meta device gets memory-mapped weights: nothing is copied, processes share the pages,
    and pages that training changes become private. The file may be deleted or replaced meanwhile, but must not be
    overwritten in place.
    """
    read_header(path, ours=False)
    weights = safetensors.torch.load_file(path)
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    fits = f"{path} does not fit {model.default_cfg.get('architecture', type(model).__name__)} with plan '{model.plan}'"
    if missing:
        raise UsageError(f"{fits}: it lacks {missing[0]} ({len(missing)} in all)")
    if unknown:
        raise UsageError(f"{fits}: it has {unknown[0]} ({len(unknown)} in all), which the model does not have")
    for key, tensor in weights.items():
        if tensor.shape != own[key].shape:
            raise UsageError(f"{fits}: its {key} is {tuple(tensor.shape)}, the model's {tuple(own[key].shape)}")
    if mmap and all(tensor.is_meta for tensor in own.values()):
        model.load_state_dict(weights, assign=True)
    else:
        put_weights(model, weights)


def put_weights(model: Model, weights: Mapping[str, Tensor]) -> None:
    """Copy weights that fit into a model. A model on the meta device takes their device and type."""
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        model.load_state_dict({key: tensor.clone() for key, tensor in weights.items()}, assign=True)
    else:
        model.load_state_dict(weights)


def read_header(path: str | Path, ours: bool = True) -> dict[str, str]:
    """The header of a safetensors file; with `ours`, a file that does not name its model is an error."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        why = "pickled checkpoints are not read, since they can run code; convert a state dict with"
        raise UsageError(
            f"{path} is not a safetensors file ({error}); {why} {CONVERT.replace('FILE', str(path))}"
        ) from error
    if ours and "stepsnet_format" not in header:
        raise UsageError(f"{path} does not say which model it is for; use create_model(name, checkpoint_path=…)")
    version = header.get("stepsnet_format", str(FORMAT_VERSION))
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        raise UsageError(
            f"{path} was written by a newer stepsnet (format {version}, this one reads up to {FORMAT_VERSION}); upgrade"
        )
    return header


def _plain(value: object) -> object:
    if isinstance(value, StepPlan):
        return str(value)
    raise TypeError(f"{value!r}")
