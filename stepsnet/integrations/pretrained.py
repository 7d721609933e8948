"""Start a model from other weights: of a run, a file, timm or transformers. The head may be a new one.

    model = stepsnet.create_model("deit_small", num_classes=37)
    print(stepsnet.load_pretrained(model, "timm:deit_small_patch16_224"))      # what was loaded, and what is new
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from stepsnet.errors import UsageError, nearest
from stepsnet.integrations.names import timm_weights, transformers_weights
from stepsnet.models import Model
from stepsnet.models.deit import DeiT, resize_positions
from stepsnet.models.files import read_header, weights_file
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision
from stepsnet.runs.folder import SHIPPED, WEIGHTS, WEIGHTS_EMA, pretrained_folder

HEAD = "head."
FORMS = "a run, a safetensors file, pretrained:NAME, timm:NAME or hf:FOLDER"


@dataclass(frozen=True)
class Started:
    """Which tensors of a model were loaded from `source`. `str()` is a sentence."""

    source: str
    loaded: tuple[str, ...]
    resized: tuple[str, ...]
    """Loaded and adapted to another image size or number of input channels."""
    new: tuple[str, ...]
    """Not in the source, or of another shape there: as initialised."""

    def __str__(self) -> str:
        count = len(self.loaded) + len(self.resized)
        parts = [f"Started from {self.source}: {count} of {count + len(self.new)} tensors are loaded"]
        parts += [f"resized: {', '.join(self.resized)}"] if self.resized else []
        parts += [f"new: {', '.join(self.new)}"] if self.new else []
        return "; ".join(parts) + "."


def load_pretrained(model: Model, source: str | Path) -> Started:
    """Fill `model` from `source`: a run, a safetensors file, "timm:NAME" or "hf:FOLDER". Returns what was loaded.

    The head stays new where its shape differs, for example for another number of classes. Positions and the first
    layer are adapted to another image size and number of input channels. Everything else must fit. A run's averaged
    weights come first. Files may have the names of stepsnet, of timm or of transformers' ViT, Swin and ResNet.
    """
    weights, started = match_weights(model, source)
    model.load_state_dict(model.state_dict() | weights)
    return started


def match_weights(model: Model, source: str | Path) -> tuple[dict[str, Tensor], Started]:
    """The tensors of `source` that fit `model`, and which they are. Nothing is loaded."""
    source = str(source)
    own, given = model.state_dict(), _read(model, source)
    fits: dict[str, Tensor] = {}
    resized: list[str] = []
    new: list[str] = []
    for key, tensor in own.items():
        if key in given and given[key].shape == tensor.shape:
            fits[key] = given[key]
        elif key in given and (adapted := _resize(model, key, given[key], tensor)) is not None:
            fits[key] = adapted
            resized.append(key)
        elif key.startswith(HEAD):
            new.append(key)
        else:
            found = f"is {tuple(given[key].shape)} there, not {tuple(tensor.shape)}" if key in given else "is not there"
            raise UsageError(f"{source} does not fit {_describe(model)}: {key} {found}.")
    if unknown := [key for key in given if key not in own and not key.startswith("head")]:
        why = f"it has {unknown[0]} ({len(unknown)} in all), which the model does not have"
        raise UsageError(f"{source} does not fit {_describe(model)}: {why}.")
    loaded = tuple(key for key in fits if key not in resized)
    return fits, Started(source, loaded, tuple(resized), tuple(new))


def options_of(source: str | Path) -> dict[str, Any] | None:
    """Name ("model") and options of the model that a run or a file of ours holds; None for other sources."""
    if str(source).startswith(("timm:", "hf:")):
        return None
    header = read_header(_file(str(source)), ours=False)
    if "stepsnet_format" not in header:
        return None
    return json.loads(header["options"]) | {"model": header["name"], "plan": header["plan"]}


def _describe(model: Model) -> str:
    return f"{model.default_cfg.get('architecture', type(model).__name__)} with plan '{model.plan}'"


def _read(model: Model, source: str) -> dict[str, Tensor]:
    """The weights of `source` under our names."""
    kind, _, name = source.partition(":")
    if kind in ("timm", "hf") and any(len(plan) > 1 for plan in model.plans):
        name = model.default_cfg.get("architecture", type(model).__name__)
        raise UsageError(f"{source} does not fit {name}, which has several steps: other libraries have weights of "
                         "one-step models only, for example for model=deit_small, resnet50 or swin_tiny.")
    if kind == "timm":
        return timm_weights(model.family, _from_timm(name))
    if kind == "hf":
        return _renamed(model, _from_folder(Path(name).expanduser()))
    file = _file(source)
    header = read_header(file, ours=False)
    if "stepsnet_format" in header:
        _refuse_another(model, source, header)
        return safetensors.torch.load_file(file)
    return _renamed(model, safetensors.torch.load_file(file))


def _renamed(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights` under our names, whichever of the three libraries named them."""
    own = model.state_dict().keys()
    named = (dict(weights), timm_weights(model.family, weights), transformers_weights(model.family, weights))
    return max(named, key=lambda candidate: len(own & candidate.keys()))


def _file(source: str) -> Path:
    """The file, or the weights in the run folder: averaged ones first."""
    shipped = source.startswith(SHIPPED)
    place = pretrained_folder(source.removeprefix(SHIPPED)) if shipped else source
    path = weights_file(place, (WEIGHTS_EMA, WEIGHTS))
    if not path.is_file():
        raise UsageError(f"There are no weights {source}: give {FORMS}.")
    return path


def _refuse_another(model: Model, source: str, header: Mapping[str, str]) -> None:
    """Weights of another architecture, plan or join would fit in part or not at all."""
    own, options = model.default_cfg, json.loads(header["options"])
    if header["name"] != own["architecture"]:
        raise UsageError(f"{source} is a {header['name']}, not a {own['architecture']}; "
                         f"give model={header['name']} or other weights.")
    if header["plan"] != model.plan:
        raise UsageError(f"{source} has the plan '{header['plan']}', but the run '{model.plan}'; "
                         f"give plan='{header['plan']}'.")
    for key, default in (("join", "plain"), ("macro", "steps")):
        theirs, ours = options.get(key, default), own["options"].get(key, default)
        if theirs != ours:
            raise UsageError(f"{source} was trained with {key}={theirs}, but the run has {key}={ours}.")


def _from_timm(name: str) -> dict[str, Tensor]:
    import_torchvision()
    timm = require("timm", extra="timm")
    if not timm.is_model(name.partition(".")[0]):
        raise UsageError(f"timm has no model '{name}'{nearest(name, timm.list_models())}.")
    try:
        return timm.create_model(name, pretrained=True).state_dict()
    except (OSError, RuntimeError) as error:  # no connection and no copy in the cache; no such weights
        why = " ".join(str(error).split("\n", 1)[0].split())
        raise UsageError(f"The pretrained weights of timm:{name} are not available ({why}); "
                         "if you have their model.safetensors, give that file.") from error


def _from_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors in the safetensors files of a folder that transformers saved."""
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not files:
        raise UsageError(f"hf:{folder} is not a folder that transformers saved: it needs config.json and "
                         "model.safetensors (nothing is downloaded).")
    weights: dict[str, Tensor] = {}
    for file in files:
        read_header(file, ours=False)  # an unreadable file is a usage error
        weights |= safetensors.torch.load_file(file)
    return weights


def _resize(model: Model, key: str, given: Tensor, wanted: Tensor) -> Tensor | None:
    """`given` for another image size or number of input channels; None if that is not the difference."""
    if key == "pos_embed" and isinstance(model, DeiT) and given.shape[2] == wanted.shape[2]:
        side = math.isqrt(given.shape[1] - 1)
        return resize_positions(given, (side, side), model.grid) if side * side == given.shape[1] - 1 else None
    first = key in ("patch_embed.proj.weight", "stem.conv.weight")
    if first and given.ndim == 4 and given.shape[:1] + given.shape[2:] == wanted.shape[:1] + wanted.shape[2:]:
        # Each new channel gets the mean over the old ones; the sum over channels stays the same.
        return given.sum(1, keepdim=True).expand_as(wanted) / wanted.shape[1]
    return None
