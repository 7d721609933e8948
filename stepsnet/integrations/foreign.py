"""Models of timm and transformers with inputs to run them on, for whoever wants to look at them: nothing is downloaded.

`timm:vit_tiny_patch16_224` is built with random weights. `hf:FOLDER` is read from a folder that transformers saved, safetensors only;
`hf:llama` is built from the default configuration of that type with random weights, and, if that is a giant, cut to a size that fits.
"""

from __future__ import annotations

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

PICTURES, TEXTS, TOKENS = 4, 2, 64
"""How many random pictures, or texts of how many tokens, a model gets to see."""

TOO_BIG = 1_000_000_000
"""Parameters above which a model that is only a configuration is cut: 4 GB in fp32, three times that with gradients and activations."""

CUT = {"hidden_size": 512, "n_embd": 512, "d_model": 512, "num_hidden_layers": 32, "n_layer": 32, "vocab_size": 32_000}
"""What a giant is cut to, where it is larger. Depth stays, up to 32 blocks: it is what one looks for."""

FROM_PYTHON = "from Python, stepsnet.analysis takes any inputs"


@dataclass(frozen=True)
class Loaded:
    """A model and what it is looked at with. `weights` and `data` say in words where both come from.

    `loss` runs the model and returns the scalar to differentiate; without one, a random projection of the output serves. `trained` is
    whether training has had a say in the weights, None where nobody knows.
    """

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]
    weights: str
    data: str
    trained: bool | None
    loss: Callable[[], Tensor] | None = None
    family: str = ""
    """Of a registered model: "deit", "swin", …"""

    @property
    def description(self) -> str:
        return f"{self.name}: {self.weights}; {self.data}"


def load_foreign(name: str, seed: int = 0) -> Loaded:
    """The model that `timm:…` or `hf:…` names."""
    library, _, what = name.partition(":")
    if library not in LIBRARIES or not what:
        raise UsageError(f"'{name}' names no model of another library; write timm:NAME, hf:FOLDER or hf:TYPE")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LIBRARIES[library](what, seed)


def is_foreign(name: str) -> bool:
    """Whether a name says that its model is of another library."""
    return name.partition(":")[0] in LIBRARIES and ":" in name


def random_images(*shape: int) -> tuple[Tensor, str]:
    """Standard normal pixels, which is what normalised pictures have on average, and the words for it."""
    return torch.randn(PICTURES, *shape), f"{PICTURES} random pictures of {'×'.join(map(str, shape))}"


def random_tokens(vocabulary: int, length: int) -> tuple[Tensor, str]:
    """Tokens drawn evenly, and the words for it."""
    return torch.randint(vocabulary, (TEXTS, length)), f"{TEXTS} random texts of {length} tokens"


def _timm(name: str, seed: int) -> Loaded:
    import_torchvision()
    timm = require("timm", extra="timm")
    if not timm.is_model(name.partition(".")[0]):
        raise UsageError(f"timm has no model '{name}'{nearest(name, timm.list_models())}")
    try:
        model = timm.create_model(name, pretrained=False)
    except RuntimeError as error:  # a tag, what follows the point, that it does not know
        raise UsageError(f"timm cannot make '{name}': {_first_line(error)}") from error
    x, data = random_images(*model.pretrained_cfg["input_size"])
    return Loaded(f"timm:{name}", model, (x,), f"timm's, as initialised (seed {seed})", data, trained=False)


def _transformers(what: str, seed: int) -> Loaded:
    import_torchvision_if_installed()
    library = require("transformers", extra="transformers")
    if Path(what).is_dir() or "/" in what:
        (model, weights), trained, cut = _saved(library, what), None, ""
    else:
        config, cut = _configuration(library, what)
        model = library.AutoModel.from_config(config)
        weights, trained = f"default configuration, as initialised (seed {seed})", False
    inputs, data = _inputs_for(model, what)
    return Loaded(f"hf:{what}{cut}", model, inputs, weights, data, trained)


def _saved(library: ModuleType, folder: str) -> tuple[nn.Module, str]:
    """A model and where its weights are from. They are read from safetensors only: a pickled file can run code."""
    if not (Path(folder) / "config.json").is_file():
        raise UsageError(f"there is no config.json in {folder}, so it is no folder of transformers; nothing is downloaded")
    how = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    try:
        with _quietly(library):
            model, found = library.AutoModel.from_pretrained(folder, **how)
    except (OSError, ValueError) as error:
        raise UsageError(f"transformers cannot read a model from {folder}: {_first_line(error)}") from error
    absent, all_of_them = len(found["missing_keys"]), len(model.state_dict())
    return model, "weights from its folder" + (f", but for {absent} of {all_of_them}, newly made" if absent else "")


@contextmanager
def _quietly(library: ModuleType) -> Iterator[None]:
    """Without the bars and reports of transformers, of which what matters is said in a word."""
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
    """The default configuration of a type, cut where the model would be a giant, and the words that say so."""
    known = list(library.CONFIG_MAPPING)
    if kind not in known:
        raise UsageError(f"transformers has no model type '{kind}'{nearest(kind, known)}; hf:FOLDER takes a folder that it saved")
    config = library.AutoConfig.for_model(kind)
    _refuse_two_inputs(config, kind)
    full = _parameters(library, config, kind)
    if full <= TOO_BIG:
        return config, ""
    sizes = {key: (getattr(config, key), limit) for key, limit in CUT.items() if isinstance(getattr(config, key, None), int)}
    changed = {key: limit for key, (size, limit) in sizes.items() if size > limit}
    for width in ("hidden_size", "n_embd", "d_model"):
        if width in changed:  # what hangs on the width shrinks with it; heads of 64 channels
            changed |= _scaled(config, sizes[width][0], changed[width])
    small = library.AutoConfig.for_model(kind, **changed)
    left = _parameters(library, small, kind)
    if left > TOO_BIG:
        raise UsageError(f"{kind} has {full / 1e9:.1f} G parameters and could not be cut to fit; save a smaller one and give hf:FOLDER")
    words = ", ".join(f"{key}={value}" for key, value in changed.items())
    return small, f" (cut from {full / 1e9:.2f} G to {left / 1e9:.2f} G parameters: {words})"


def _scaled(config: Any, width: int, cut: int) -> dict[str, int]:
    heads = cut // 64
    scaled = {key: heads for key in ("num_attention_heads", "n_head", "num_key_value_heads") if isinstance(getattr(config, key, None), int)}
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
        raise UsageError(f"transformers cannot build {kind} from its default configuration: {_first_line(error)}") from error
    return sum(parameter.numel() for parameter in model.parameters())


def _inputs_for(model: Any, what: str) -> tuple[tuple[Any, ...], str]:
    config, wants = model.config, model.main_input_name
    _refuse_two_inputs(config, what)
    if wants == "input_ids":
        longest = getattr(config, "max_position_embeddings", None) or TOKENS
        x, data = random_tokens(config.vocab_size, min(TOKENS, longest))
        return (x,), data
    if wants == "pixel_values" and isinstance(getattr(config, "num_channels", None), int):
        side = getattr(config, "image_size", None) or 224
        high, wide = side if isinstance(side, (tuple, list)) else (side, side)
        x, data = random_images(config.num_channels, high, wide)
        return (x,), data
    raise UsageError(f"{what} takes '{wants}', for which no random input is known here; {FROM_PYTHON}")


def _refuse_two_inputs(config: Any, what: str) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{what} has an encoder and a decoder, for which no random input is known here; {FROM_PYTHON}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


LIBRARIES: dict[str, Callable[[str, int], Loaded]] = {"timm": _timm, "hf": _transformers}
