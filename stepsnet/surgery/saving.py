"""Saving and loading models that were stepified or deepened.

A model of transformers is saved by its own `save_pretrained`: what was done is in its configuration, as
`config.stepsnet`. `load` makes it again; so does `AutoModel….from_pretrained(folder, trust_remote_code=True)`, by the
file modeling_stepsnet.py in the folder, which imports stepsnet. A model of timm is saved as stepsnet.json and
model.safetensors. `load` executes nothing that is in the folder.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import torch as safetensors
from torch import nn

from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.integrations.foreign import quietly
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision, import_torchvision_if_installed
from stepsnet.surgery.timm import head_options

RECORD = "stepsnet_record"
FILE, WEIGHTS, CODE = "stepsnet.json", "model.safetensors", "modeling_stepsnet.py"
AUTO = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForSpeechSeq2Seq",
    "AutoBackbone",
)


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a stepified or deepened model to a folder that `load` reads."""
    record = record_of(model)
    folder = Path(folder)
    if record["library"] == "transformers":
        with quietly(require("transformers", extra="transformers")):
            model.save_pretrained(folder)  # type: ignore[operator]
        return
    if record["library"] == "stepsnet":
        raise UsageError(f"{type(model).__name__} is a model of this package; save it with stepsnet.save_model")
    if record["library"] != "timm":
        raise UsageError(
            f"{type(model).__name__} is not of timm or transformers; save its state_dict and stepify a new one"
        )
    try:
        text = json.dumps(record, indent=2)
    except TypeError as error:
        what = f"this {type(model).__name__} cannot be saved, but its state_dict can"
        raise UsageError(f"{what}: a value of options= cannot be written as JSON ({error})") from error
    state = {key: value.detach().contiguous() for key, value in model.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / WEIGHTS, safetensors.save(state))
    replace_file(folder / FILE, text.encode())


def load(folder: str | Path, *, num_classes: int | None = None, drop_path: float = 0.0) -> Any:
    """The model in a folder that `save` or `save_pretrained` wrote.

    Weights are read from safetensors only, no code is executed. Another number of classes makes a new head. A drop-path
    rate above 0 replaces the model's own (timm only).
    """
    folder = Path(folder)
    if (folder / FILE).is_file():
        return _load_timm(folder, num_classes, drop_path)
    if drop_path:
        raise UsageError(f"the stochastic depth of a model of transformers is fixed; give drop_path=0 for {folder}")
    if not (folder / "config.json").is_file():
        raise UsageError(f"there is neither {FILE} nor config.json in {folder}")
    import_torchvision_if_installed()
    library = require("transformers", extra="transformers")
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = described.get("architectures") or [""]
    plain = getattr(library, names[0], None)
    if "stepsnet" not in described:
        raise UsageError(
            f"the model in {folder} was not stepified or deepened: its config.json has no entry 'stepsnet'"
        )
    if not (isinstance(plain, type) and issubclass(plain, library.PreTrainedModel)):
        raise UsageError(f"transformers has no model class '{names[0]}', which {folder} names")
    more = {} if num_classes is None else {"num_labels": num_classes, "ignore_mismatched_sizes": True}
    with quietly(library):
        return remade(plain).from_pretrained(folder, local_files_only=True, use_safetensors=True, **more)


def source_of(model: nn.Module) -> dict[str, Any]:
    """What `make_network` makes the model again from, without its weights, as plain data."""
    record = record_of(model)
    if record["library"] == "timm":
        return record
    config: Any = model.config
    return {"class": type(model).__name__, "config": json.loads(config.to_json_string(use_diff=False))}


def make_network(source: Mapping[str, Any]) -> nn.Module:
    """The stepified or deepened model of a `source_of`, with new weights."""
    if "class" not in source:
        return _make_timm(dict(source))
    import_torchvision_if_installed()
    library = require("transformers", extra="transformers")
    plain = getattr(library, source["class"])
    made: nn.Module = remade(plain)(plain.config_class.from_dict(source["config"]))
    return made


def record_of(model: nn.Module) -> dict[str, Any]:
    """What was done to a model, as plain data that can make it again."""
    record: dict[str, Any] | None = getattr(model, RECORD, None)
    if record is None:
        raise UsageError(f"this {type(model).__name__} was not changed by stepify or deepen")
    if not isinstance(record.get("join", "plain"), str):
        raise UsageError("a model whose join is a module or function cannot be saved; its state_dict can")
    if record["library"] == "timm":
        record["made"] |= head_options(model)
    return record


def make_again(model: nn.Module, record: Mapping[str, Any]) -> None:
    """Do to a plain model what `record` says.

    New blocks are not made the identity: weights are loaded into them next.
    """
    from stepsnet.surgery.deepen import insert
    from stepsnet.surgery.stepify import stepify

    how = {key: record[key] for key in ("heads", "blocks", "options") if record.get(key)}
    if record["what"] == "stepify":
        stepify(model, record["plan"], join=record["join"], **how)
    else:
        insert(
            model,
            [[tuple(one) if isinstance(one, list) else one for one in order] for order in record["orders"]],
            **how,
        )


def _make_timm(record: dict[str, Any]) -> nn.Module:
    import_torchvision()
    timm = require("timm", extra="timm")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in record["made"].items()}
    record["options"] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record["options"].items()
    }
    model: nn.Module = timm.create_model(record["name"], pretrained=False, **options)
    make_again(model, record)
    return model


def _load_timm(folder: Path, num_classes: int | None, drop_path: float) -> nn.Module:
    record = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if drop_path:
        record["made"]["drop_path_rate"] = record["options"]["drop_path_rate"] = drop_path
    model: Any = _make_timm(record)
    state = safetensors.load_file(folder / WEIGHTS)
    own = model.state_dict()
    wrong = next(
        (
            key
            for key in own.keys() | state.keys()
            if key not in own or key not in state or own[key].shape != state[key].shape
        ),
        None,
    )
    if wrong is not None:
        remedy = "it was made with options that timm does not record; give them to stepify as options={…}, save again"
        where = f"the tensor '{wrong}' does not fit timm's '{record['name']}'"
        raise UsageError(f"{folder} cannot be loaded: {where}; {remedy}")
    model.load_state_dict(state)
    if num_classes is not None and num_classes != model.num_classes:
        model.reset_classifier(num_classes)
    return model.eval()


@functools.cache
def remade(plain: Any) -> Any:
    """A class of transformers whose instances are stepified or deepened as their configuration says when they are made.
    """

    @functools.wraps(plain.__init__)  # transformers looks at its arguments
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        record = dict(config.stepsnet)
        for key, value in record["made"].items():
            setattr(config, key, value)
        plain.__init__(self, config, *args, **kwargs)
        for tied, source in getattr(self, "all_tied_weights_keys", {}).items():
            # from_pretrained ties them after this, but the report counts parameters now
            place, _, name = tied.rpartition(".")
            setattr(self.get_submodule(place), name, self.get_parameter(source))
        make_again(self, record)

    def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        record_of(self)
        type(self)._auto_class = None  # else transformers would copy the file of the plain class
        self.config.auto_map = {
            name: f"{Path(CODE).stem}.{plain.__name__}" for name in auto_classes(plain, self.config)
        }
        plain.save_pretrained(self, save_directory, *args, **kwargs)
        replace_file(Path(save_directory) / CODE, _CODE.format(name=plain.__name__).encode())

    def set_attn_implementation(self: Any, *args: Any, **kwargs: Any) -> None:
        plain.set_attn_implementation(self, *args, **kwargs)
        for module in self.modules():  # blocks have configurations of their own widths
            config = getattr(module, "config", None)
            if config is not None and type(config) is type(self.config):
                config._attn_implementation_internal = self.config._attn_implementation

    members = {
        "__init__": init,
        "save_pretrained": save_pretrained,
        "set_attn_implementation": set_attn_implementation,
        "__reduce_ex__": lambda self, _protocol: (_empty, (plain,), self.__dict__),
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "stepsnet_plain": plain,
    }
    return type(plain.__name__, (plain,), members)


def _empty(plain: Any) -> Any:
    made = remade(plain)
    return made.__new__(made)


def auto_classes(plain: Any, config: Any) -> list[str]:
    """The Auto classes of transformers that a class belongs to."""
    library = require("transformers", extra="transformers")
    found = []
    for name in AUTO:
        mapping = getattr(library, name)._model_mapping
        mapped = mapping.get(type(config), ())
        if plain in (mapped if isinstance(mapped, (list, tuple)) else (mapped,)):
            found.append(name)
    return found


_CODE = '''"""Written by stepsnet, which must be installed: the model of this folder was stepified or deepened."""

from transformers import {name} as Plain

from stepsnet.surgery.saving import remade

{name} = remade(Plain)
'''


def remember(model: nn.Module, record: dict[str, Any]) -> None:
    """Keep on the model what was done to it; for transformers also in the configuration, and by a class that saves it.
    """
    setattr(model, RECORD, record)
    if record["library"] == "transformers":
        model.config.stepsnet = record  # type: ignore[union-attr]
        if not hasattr(type(model), "stepsnet_plain"):
            plain: Any = type(model)
            model.__class__ = remade(plain)


def forget(model: nn.Module) -> None:
    """The opposite of `remember`."""
    if hasattr(model, RECORD):
        delattr(model, RECORD)
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "stepsnet"):
        del config.stepsnet
    model.__class__ = getattr(type(model), "stepsnet_plain", type(model))
