"""Stepified and deepened models as models of this package: what train, eval, predict, bench and export take.

`adopt(folder)` reads a folder of `stepsnet stepify` or `deepen`. The model in it is wrapped: it returns logits, knows
its plan and blocks, and `save_model` writes a file from which `load_model` makes it again without the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from stepsnet.cost import Cost, LayerOutputs, Memory, count_params
from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models import Model, VisionModel
from stepsnet.models.design import PLAIN, Design, image_sides
from stepsnet.models.registry import Variant
from stepsnet.models.vision import IMAGENET_MEAN, IMAGENET_STD, FeatureInfo
from stepsnet.surgery.hosts import first_line, run_on_meta
from stepsnet.surgery.report import surgery_report
from stepsnet.surgery.saving import auto_classes, load, make_network, source_of

LEAST_USED = 0.9
"""The data must have at least this share of a model's tokens. The rest is padding and reserved tokens."""


def adopt(
    folder: str | Path,
    *,
    drop_path: float = 0.0,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    vocab_size: int | None = None,
    seq_len: int | None = None,
) -> Model:
    """The model in a folder of `stepsnet stepify` or `deepen`, for data of the given sizes (default: its own).

    Another number of classes makes a new head.
    """
    network = load(folder, num_classes=num_classes, drop_path=drop_path)
    family = _family(network, folder)
    needs = "images" if vocab_size is None else "text"
    if (num_classes or vocab_size) and needs != family.takes:
        raise UsageError(f"the model in {folder} takes {family.takes}; this task needs a model that takes {needs}")
    own = surgery_report(network).input[1:]
    size = (seq_len or own[0],) if family.takes == "text" else _image_size(own, in_chans, img_size)
    if family.takes == "text":
        _check_text(network, folder, vocab_size or 0, size[0])
    else:
        _check_images(network, folder, own, size)
    model = family(PLAIN, network, size)
    options = {"source": source_of(network), "input_size": list(size)}
    model.default_cfg = {
        "architecture": family.name, "family": model.family, "input_size": size, "options": options, **model.cfg(),
    }  # fmt: skip
    return model


class Adopted(Model):
    """A model of another library that was stepified or deepened, or what makes one (see `source_of`)."""

    name: str
    takes: str
    on_meta = False
    """Buffers such as rotary frequencies are in no file, so the model is not made on the meta device and then filled.
    """

    def __init__(
        self,
        design: Design,  # noqa: ARG002  # the plan is part of the source
        source: nn.Module | Mapping[str, Any],
        input_size: Sequence[int],
    ) -> None:
        super().__init__()
        self.network: Any = source if isinstance(source, nn.Module) else make_network(source)
        report = surgery_report(self.network)
        self.plans = tuple(StepPlan.parse(plan, any_order=True) for plan in report.plan_after.split(";"))
        self.family, self.input_size = report.model, tuple(input_size)
        self._blocks = report.blocks
        first: dict[int, str] = {}
        names = {key: first.setdefault(id(value), key) for key, value in super().state_dict(keep_vars=True).items()}
        self.aliases = {key: name for key, name in names.items() if key != name}
        """Names of tied weights and what they are tied to. Files hold such a weight once."""
        self.register_state_dict_post_hook(_without_aliases)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_aliases)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        out = self.network(x)
        return out if isinstance(out, Tensor) else out.logits

    def forward_features(self, x: Tensor) -> Tensor:
        own = hasattr(self.network, "forward_features")
        found: Tensor = self.network.forward_features(x) if own else self.network.base_model(x)[0]
        return found

    def cost(self, input_size: tuple[int, ...] | None = None) -> Cost:
        with FlopCounterMode(display=False) as counter:
            run_on_meta(self.network, (self.dummy_input(input_size),))
        macs = counter.get_total_flops() // 2
        return Cost(self.count_blocks(), self.count_layers(), count_params(self), macs)

    def memory(self, input_size: tuple[int, ...] | None = None) -> Memory:
        with LayerOutputs() as outputs:
            found = run_on_meta(self.network, (self.dummy_input(input_size),))
        cache = getattr(found, "past_key_values", None)
        kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)] if cache is not None else []
        return Memory(outputs.bytes, sum(tensor.nbytes for tensor in kept))

    def blocks_in_order(self) -> list[nn.Module]:
        return [self.network.get_submodule(name) for name in self._blocks]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        if hasattr(self.network, "set_grad_checkpointing"):
            self.network.set_grad_checkpointing(enable)
        elif enable:
            self.network.config.use_cache = False
            self.network.gradient_checkpointing_enable()

    def no_weight_decay(self) -> set[str]:
        named: Callable[[], set[str]] = getattr(self.network, "no_weight_decay", set)
        return {f"network.{name}" for name in named()}

    def changed_options(self) -> dict[str, Any]:
        return {}


class AdoptedImages(Adopted, VisionModel):
    """An image classifier of timm or transformers."""

    name, takes = "stepified_images", "images"

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        own, wanted = ("×".join(map(str, sides)) for sides in (self.input_size[1:], image_sides(img_size)))
        raise UsageError(f"a stepified model keeps the image size it was made for, {own}, and cannot take {wanted}")

    def __init__(self, design: Design, source: nn.Module | Mapping[str, Any], input_size: Sequence[int]) -> None:
        super().__init__(design, source, input_size)
        config = getattr(self.network, "config", None)
        self.num_classes = self.network.num_classes if config is None else config.num_labels
        self.feature_info = FeatureInfo()

    def cfg(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}

    def intermediates(self, *_args: Any, **_options: Any) -> Any:
        raise UsageError(f"a stepified {self.family} has no feature maps; detection needs a registered model")

    pool = cut_after = intermediates  # parts of backbones as well

    def forward(self, x: Tensor) -> Tensor:
        return Adopted.forward(self, x)

    def forward_features(self, x: Tensor) -> Tensor:
        return Adopted.forward_features(self, x)


class AdoptedText(Adopted):
    """A language model of transformers."""

    name, takes = "stepified_text", "text"

    def cfg(self) -> dict[str, Any]:
        config = self.network.config
        return {"vocab_size": config.vocab_size, "longest_text": getattr(config, "max_position_embeddings", None)}

    def dummy_input(self, input_size: tuple[int, ...] | None = None) -> Tensor:
        return torch.zeros(1, *(input_size or self.input_size), dtype=torch.long, device="meta")


VARIANTS = {family.name: Variant(family.name, family, {}) for family in (AdoptedImages, AdoptedText)}
"""Names in weight files. They are not in the registry: without a file there is nothing to make."""


def _without_aliases(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for alias in module.aliases:  # type: ignore[union-attr]
        state.pop(f"{prefix}{alias}", None)


def _with_aliases(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for alias, first in module.aliases.items():  # type: ignore[union-attr, operator]
        if f"{prefix}{first}" in state:
            state[f"{prefix}{alias}"] = state[f"{prefix}{first}"]


def _family(network: Any, folder: str | Path) -> type[AdoptedImages] | type[AdoptedText]:
    config = getattr(network, "config", None)
    if config is None:
        return AdoptedImages
    heads = auto_classes(type(network).stepsnet_plain, config)
    if "AutoModelForCausalLM" in heads:
        return AdoptedText
    if "AutoModelForImageClassification" in heads:
        return AdoptedImages
    kinds = "a causal language model or an image classifier"
    raise UsageError(f"{folder} holds a {type(network).__name__}; this command takes {kinds}")


def _image_size(
    own: tuple[int, ...], channels: int | None, sides: int | tuple[int, int] | None
) -> tuple[int, int, int]:
    height, width = own[1:] if sides is None else (sides, sides) if isinstance(sides, int) else sides
    return channels or own[0], height, width


def _check_images(network: nn.Module, folder: str | Path, own: tuple[int, ...], size: tuple[int, ...]) -> None:
    if size == own:
        return
    try:
        run_on_meta(network, (torch.empty(1, *size),))
    except (RuntimeError, ValueError, AssertionError) as error:
        asked, made = ("×".join(map(str, shape)) for shape in (size, own))
        raise UsageError(
            f"the model in {folder} takes images of {made}, not of {asked} ({first_line(error)}); "
            f"give data.img_size={own[1]}"
        ) from error


def _check_text(network: Any, folder: str | Path, vocabulary: int, length: int) -> None:
    own, longest = network.config.vocab_size, getattr(network.config, "max_position_embeddings", None)
    if vocabulary > own:
        raise UsageError(f"the model in {folder} has {own} tokens, the data {vocabulary}; use a tokenizer that fits")
    if 0 < vocabulary < LEAST_USED * own:
        how = "encode the text with the model's tokenizer: `stepsnet prepare-text FILES --tokenizer FILE`"
        raise UsageError(f"the model in {folder} has {own} tokens, but the data only {vocabulary}; {how}")
    if longest is not None and length > longest:
        raise UsageError(f"the model in {folder} takes at most {longest} tokens, not {length}; give data.seq_len")
