"""Models of timm and transformers with random inputs, for analysis. Nothing is downloaded.

`timm:vit_tiny_patch16_224` is built with random weights. `hf:FOLDER` is read from a folder saved by transformers
(safetensors only). `hf:llama` is built from the default configuration of that type with random weights, and reduced in
size if it is too large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError, nearest
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision, import_torchvision_if_installed

N_IMAGES, N_TEXTS, N_TOKENS = 4, 2, 64
"""Number of random images, number of random texts, and tokens per text."""

TOO_LARGE = 1_000_000_000
"""Parameters above which a default configuration is reduced: 4 GB in fp32, three times that with gradients."""

LIMITS = {
    "hidden_size": 512,
    "n_embd": 512,
    "d_model": 512,
    "num_hidden_layers": 32,
    "n_layer": 32,
    "vocab_size": 32_000,
}
"""Sizes of a reduced model. Depth is kept up to 32 blocks, because depth is what is analysed."""

FROM_PYTHON = "from Python, stepsnet.analysis takes any inputs"


@dataclass(frozen=True)
class Loaded:
    """A model and its inputs. `weights` and `data` describe where they come from.

    `loss` runs the model and returns the scalar to differentiate; by default a random projection of the output is used.
    `trained` says whether the weights are trained; None if unknown.
    """

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]
    weights: str
    data: str
    trained: bool | None
    loss: Callable[[], Tensor] | None = None
    family: str = ""
    """Family of a registered model: "deit", "swin", …"""

    @property
    def description(self) -> str:
        return f"{self.name}: {self.weights}; {self.data}"


def load_foreign(name: str, seed: int = 0, *, with_head: bool = False) -> Loaded:
    """The model that `timm:…` or `hf:…` names.

    Of transformers it is the model without its head, unless `with_head`: then it is the class that a folder names, and
    for a type the causal language model or image classifier, if there is one.
    """
    library, _, what = name.partition(":")
    if library not in LIBRARIES or not what:
        raise UsageError(f"'{name}' is not timm:NAME, hf:FOLDER or hf:TYPE")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LIBRARIES[library](what, seed, with_head)


def is_foreign(name: str) -> bool:
    """Whether a name has the form timm:… or hf:…"""
    return name.partition(":")[0] in LIBRARIES and ":" in name


def random_images(*shape: int) -> tuple[Tensor, str]:
    """Images of standard normal pixels, like normalised images, and their description."""
    return torch.randn(N_IMAGES, *shape), f"{N_IMAGES} random images of {'×'.join(map(str, shape))}"


def random_tokens(vocabulary: int, length: int) -> tuple[Tensor, str]:
    """Uniformly random tokens, and their description."""
    return torch.randint(vocabulary, (N_TEXTS, length)), f"{N_TEXTS} random texts of {length} tokens"


def _timm(name: str, seed: int, with_head: bool) -> Loaded:  # noqa: ARG001  # the head is always there
    import_torchvision()
    timm = require("timm", extra="timm")
    if not timm.is_model(name.partition(".")[0]):
        close = nearest(name, timm.list_models())
        raise UsageError(f"timm has no model '{name}'{close}; timm.list_models() lists them")
    try:
        model = timm.create_model(name, pretrained=False)
    except RuntimeError as error:  # an unknown tag after the point
        raise UsageError(f"timm cannot make '{name}': {_first_line(error)}") from error
    x, data = random_images(*model.pretrained_cfg["input_size"])
    return Loaded(f"timm:{name}", model, (x,), f"timm's, as initialised (seed {seed})", data, trained=False)


def _transformers(what: str, seed: int, with_head: bool) -> Loaded:
    import_torchvision_if_installed()
    library = require("transformers", extra="transformers")
    if Path(what).is_dir() or "/" in what:
        (model, weights), trained, cut = _saved(library, what, with_head), None, ""
    else:
        config, cut = _configuration(library, what)
        model = _auto_class(library, config, with_head).from_config(config)
        weights, trained = f"default configuration, as initialised (seed {seed})", False
    inputs, data = inputs_for(model, what)
    return Loaded(f"hf:{what}{cut}", model, inputs, weights, data, trained)


def _auto_class(library: ModuleType, config: Any, with_head: bool) -> Any:
    """The Auto class for a configuration. BERT and its like have causal heads too, but are made for masked text."""
    masked = type(config) in library.AutoModelForMaskedLM._model_mapping
    heads = [] if masked else [library.AutoModelForCausalLM]
    heads = [*heads, library.AutoModelForImageClassification] if with_head else []
    return next((auto for auto in heads if type(config) in auto._model_mapping), library.AutoModel)


def _named_class(library: ModuleType, folder: str) -> Any:
    """The class that the folder's configuration names, if transformers has it."""
    names = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
    found = getattr(library, names[0], None)
    return found if isinstance(found, type) and issubclass(found, library.PreTrainedModel) else library.AutoModel


def _saved(library: ModuleType, folder: str, with_head: bool) -> tuple[nn.Module, str]:
    """A model and a description of its weights. Only safetensors are read: a pickle can run code."""
    if not (Path(folder) / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; give a folder that transformers saved (nothing is downloaded)")
    how = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    try:
        with quietly(library):
            made_by = _named_class(library, folder) if with_head else library.AutoModel
            model, found = made_by.from_pretrained(folder, **how)
    except (OSError, ValueError) as error:
        raise UsageError(f"transformers cannot read a model from {folder}: {_first_line(error)}") from error
    absent, all_of_them = len(found["missing_keys"]), len(model.state_dict())
    return model, "weights from its folder" + (
        f", except {absent} of {all_of_them}, newly initialised" if absent else ""
    )


@contextmanager
def quietly(library: ModuleType) -> Iterator[None]:
    """Hide transformers' progress bars and loading report."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _configuration(library: ModuleType, kind: str) -> tuple[Any, str]:
    """The default configuration of a type, reduced if too large, and a description of the reduction."""
    known = list(library.CONFIG_MAPPING)
    if kind not in known:
        raise UsageError(f"transformers has no model type '{kind}'{nearest(kind, known)}; hf:FOLDER takes a folder")
    config = library.AutoConfig.for_model(kind)
    _refuse_two_inputs(config, kind)
    full = _parameters(library, config, kind)
    if full <= TOO_LARGE:
        return config, ""
    sizes = {
        key: (getattr(config, key), limit)
        for key, limit in LIMITS.items()
        if isinstance(getattr(config, key, None), int)
    }
    changed = {key: limit for key, (size, limit) in sizes.items() if size > limit}
    for width in ("hidden_size", "n_embd", "d_model"):
        if width in changed:  # sizes that depend on the width are scaled with it; heads have 64 channels
            changed |= _scaled(config, sizes[width][0], changed[width])
    small = library.AutoConfig.for_model(kind, **changed)
    left = _parameters(library, small, kind)
    if left > TOO_LARGE:
        raise UsageError(f"{kind} has {full / 1e9:.1f} G parameters and cannot be made small enough; "
                         "give a smaller one as hf:FOLDER")
    words = ", ".join(f"{key}={value}" for key, value in changed.items())
    return small, f" (reduced from {full / 1e9:.2f} G to {left / 1e9:.2f} G parameters: {words})"


def _scaled(config: Any, width: int, cut: int) -> dict[str, int]:
    heads = cut // 64
    scaled = {
        key: heads
        for key in ("num_attention_heads", "n_head", "num_key_value_heads")
        if isinstance(getattr(config, key, None), int)
    }
    scaled |= {"head_dim": 64} if getattr(config, "head_dim", None) else {}
    for key in ("intermediate_size", "n_inner", "d_ff", "moe_intermediate_size"):
        if isinstance(size := getattr(config, key, None), int):
            scaled[key] = round(size * cut / width)
    return scaled


def _parameters(library: ModuleType, config: Any, kind: str) -> int:
    try:
        with torch.device("meta"):
            model = library.AutoModel.from_config(config)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        raise UsageError(f"transformers cannot build a default {kind}: {_first_line(error)}") from error
    return sum(parameter.numel() for parameter in model.parameters())


def inputs_for(model: Any, what: str) -> tuple[tuple[Any, ...], str]:
    config, needs = model.config, model.main_input_name
    _refuse_two_inputs(config, what)
    if needs == "input_ids":
        longest = getattr(config, "max_position_embeddings", None) or N_TOKENS
        x, data = random_tokens(config.vocab_size, min(N_TOKENS, longest))
        return (x,), data
    if needs == "pixel_values" and isinstance(getattr(config, "num_channels", None), int):
        side = getattr(config, "image_size", None) or 224
        height, width = side if isinstance(side, (tuple, list)) else (side, side)
        x, data = random_images(config.num_channels, height, width)
        return (x,), data
    raise UsageError(f"{what} takes '{needs}', for which stepsnet has no random input; {FROM_PYTHON}")


def _refuse_two_inputs(config: Any, what: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{what} has an encoder and a decoder, for which stepsnet has no random input; {FROM_PYTHON}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


LIBRARIES: dict[str, Callable[[str, int, bool], Loaded]] = {"timm": _timm, "hf": _transformers}
