"""Models of transformers as hosts.

Blocks come from a donor: the same class made from a copy of the configuration at another width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from typing import Any

import torch
from torch import nn

from stepsnet.blocks.attention import heads_for
from stepsnet.errors import UsageError
from stepsnet.integrations.foreign import quietly
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision_if_installed
from stepsnet.surgery.hosts import DonorHost, Stage, first_line, period_of, run_on_meta

WIDTHS = ("hidden_sizes", "hidden_size", "n_embd", "d_model", "dim")
DEPTHS = ("depths", "encoder_layers", "num_hidden_layers", "n_layer", "num_layers")
HEADS = ("encoder_attention_heads", "num_attention_heads", "n_head", "n_heads", "num_heads")
INNER = ("intermediate_size", "n_inner", "encoder_ffn_dim", "ffn_dim", "hidden_dim", "d_ff", "moe_intermediate_size")
KEY_HEADS = "num_key_value_heads"
CHECKPOINTING = ("gradient_checkpointing", "_gradient_checkpointing_func")
TOKENS = 16


class TransformersHost(DonorHost):
    """`config.stepsnet` records what was done, so that a saved model can be made again."""

    library = "transformers"

    def __init__(
        self,
        model: nn.Module,
        heads: str,
        blocks: Sequence[str] | None = None,
        example: tuple[Any, ...] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        import_torchvision_if_installed()
        require("transformers", extra="transformers")
        self.config: Any = model.config
        names = [_first(group, self.config) for group in (WIDTHS, DEPTHS, HEADS)]
        if names[1] == "depths" and names[0] == "hidden_size":  # Swin computes it from the width of its first stage
            names[0] = _first(("embed_dim",), self.config)
        if names[0] is None or names[1] is None:
            raise UsageError(
                f"the configuration of {type(model).__name__} has no option for width and depth that stepsnet knows"
            )
        self.width_option, self.depth_option, self.heads_option = str(names[0]), str(names[1]), names[2]
        self._core = _core(model)
        self._prefix = next(
            f"{name}." if name else "" for name, module in model.named_modules() if module is self._core
        )
        example = example or self.make_example(model)
        config: Any = self.config
        self._without_head = bool(config.is_encoder_decoder) or (
            not runs_on_meta(model, example) and runs_on_meta(self._core, example)
        )
        super().__init__(model, heads, blocks, example, options)
        self.own = copy.deepcopy(self.config)
        self.full = [stage.width for stage in self.stages]
        self.depths = [stage.depth for stage in self.stages]
        self.origins: Sequence[int] | None = None
        self._check()

    @property
    def runs(self) -> nn.Module:
        """Without a head that needs more than the example: several choices, or the values of tokens."""
        return self._core if self._without_head else self.model

    @property
    def prefix(self) -> str:
        return self._prefix if self.runs is self._core else ""

    def prepare(self, depths: Sequence[int], origins: Sequence[Sequence[int]] | None = None) -> None:
        super().prepare(depths)
        self.origins = None if origins is None else origins[0]

    def make_example(self, model: nn.Module) -> tuple[Any, ...]:  # noqa: ARG002
        return (_example(self._core, self.config),)

    def donor_blocks(self, donor: nn.Module, stage: Stage) -> list[nn.Module]:
        members: Any = donor.get_submodule(stage.path.removeprefix(self._prefix))
        return list(members)[stage.start :]

    def exchange(self, new: Sequence[Sequence[nn.Module]]) -> list[list[nn.Module]]:
        old = super().exchange(new)
        forget_recorders(self.model)
        for before, after in zip(old, new, strict=True):
            keep_checkpointing(before[0], after)
        return old

    def settle(self, depths: Sequence[int]) -> None:
        self._set_depths(self.config, depths)
        for stage in range(len(self.stages)):
            number_layers(self.blocks(stage))

    def unit(self, stage: int) -> int:
        heads, width = self._heads(stage), self.full[stage]
        if heads is None or (self.rule == "keep_count" and self._own_dim()):
            return 8 if width >= 64 else 1
        if self.rule == "keep_count":
            return lcm(heads, min(8, width // heads))
        if not self._fixed_dim():
            return min(8, width // heads)
        return width // heads * (self._group() or 1)

    def heads(self, width: int, stage: int = 0) -> int | None:
        own, full = self._heads(stage), self.full[stage]
        if own is None or self.rule == "keep_count":
            return own
        if own * width % full == 0:
            return own * width // full
        return heads_for(width, full // own)

    def check_width(self, width: int, stage: int) -> None:
        own, full, unit = self._heads(stage), self.full[stage], self.unit(stage)
        name = type(self.model).__name__
        if own is not None and self.rule == "keep_count" and not self._own_dim() and (self._fixed_dim() or width % own):
            why = (
                "its rotary positions fix the head dimension, and its configuration has no head_dim"
                if self._fixed_dim()
                else f"{own} heads do not divide width {width}"
            )
            raise UsageError(f"heads='keep_count' is not possible for {name} at width {width}: {why}")
        if own is not None and self.rule == "keep_dim" and self._fixed_dim() and width % unit:
            raise UsageError(
                f"{name} needs multiples of {unit} (head dimension and groups of heads) as widths, not {width}"
            )
        if not isinstance(getattr(self.own, self.width_option), (list, tuple)) and width * self._first_width() % full:
            raise UsageError(
                f"stage {stage + 1} of {name} cannot be {width} wide: {self.width_option} would not be a whole number"
            )

    def _first_width(self) -> int:
        width = getattr(self.own, self.width_option)
        return int(width[0] if isinstance(width, (list, tuple)) else width)

    def _heads(self, stage: int) -> int | None:
        heads = getattr(self.own, self.heads_option, None) if self.heads_option else None
        return heads[stage] if isinstance(heads, (list, tuple)) else heads

    def _group(self) -> int | None:
        """Query heads to one key head, kept at every width; with one key head for all, it stays one."""
        keys, heads = getattr(self.own, KEY_HEADS, None), self._heads(0)
        return heads // keys if isinstance(keys, int) and heads and keys > 1 else None

    def _fixed_dim(self) -> bool:
        """Whether something outside the blocks, such as a table of rotary positions, fixes the head dimension."""
        return any(
            "rotary" in type(module).__name__.lower() or "rope" in type(module).__name__.lower()
            for module in self.model.modules()
        )

    def _own_dim(self) -> bool:
        """Whether the configuration has a head dimension of its own, so that all heads together may be wider than a
        block."""
        return isinstance(getattr(self.own, "head_dim", None), int)

    def make_donor(self, width: int, stage: int) -> nn.Module:
        config = copy.deepcopy(self.own)
        self._set_depths(config, self.depths)
        self._set_width(config, width, stage)
        for key, value in self.options.items():
            setattr(config, key, value)
        _shrink_vocabulary(config)
        try:
            with quietly(require("transformers", extra="transformers")):
                plain = getattr(type(self._core), "stepsnet_plain", type(self._core))
                donor: nn.Module = plain(config)
                return donor
        except (TypeError, ValueError, AssertionError, RuntimeError, KeyError, IndexError) as error:
            raise UsageError(
                f"transformers cannot make {type(self._core).__name__} at width {width}: {first_line(error)}"
            ) from error

    def _set_width(self, config: Any, width: int, stage: int) -> None:
        full = self.full[stage]
        own = getattr(config, self.width_option)
        if isinstance(own, (list, tuple)):
            setattr(config, self.width_option, [width if i == stage else value for i, value in enumerate(own)])
        else:
            setattr(config, self.width_option, own * width // full)
        heads = self.heads(width, stage)
        if self.heads_option and heads is not None:
            several = getattr(config, self.heads_option)
            if isinstance(several, (list, tuple)):  # other stages change their width too: 1 head divides any
                setattr(config, self.heads_option, [heads if i == stage else 1 for i in range(len(several))])
            else:
                setattr(config, self.heads_option, heads)
            if (group := self._group()) is not None:
                setattr(config, KEY_HEADS, heads // group)
            elif isinstance(getattr(config, KEY_HEADS, None), int) and getattr(self.own, KEY_HEADS) == self._heads(
                stage
            ):
                setattr(config, KEY_HEADS, heads)
        for key in INNER:
            if isinstance(size := getattr(config, key, None), int):
                setattr(config, key, _scaled(size, width, full))

    def _set_depths(self, config: Any, depths: Sequence[int]) -> None:
        several = isinstance(getattr(self.own, self.depth_option), (list, tuple))
        setattr(config, self.depth_option, list(depths) if several else depths[0])
        types = getattr(self.own, "layer_types", None)
        if isinstance(types, (list, tuple)) and not several:
            period, depth = period_of(types), depths[0]
            origins = self.origins if self.origins is not None and len(self.origins) == depth else range(depth)
            config.layer_types = [types[i] if i < len(types) else types[i % period] for i in origins]

    def record(self) -> dict[str, Any]:
        return {**super().record(), "made": self.bookkeeping()["config"], "options": self.options}

    def bookkeeping(self) -> dict[str, Any]:
        keys = [key for key in (self.depth_option, "layer_types") if hasattr(self.own, key)]
        return {
            "config": {key: copy.deepcopy(getattr(self.own, key)) for key in keys},
            "paths": [stage.path for stage in self.stages],
        }

    @staticmethod
    def restore(model: Any, bookkeeping: Mapping[str, Any]) -> None:
        for key, value in bookkeeping["config"].items():
            setattr(model.config, key, value)
        for path in bookkeeping["paths"]:
            number_layers(model.get_submodule(path))

    def _check(self) -> None:
        several = isinstance(getattr(self.own, self.depth_option), (list, tuple))
        depths = getattr(self.own, self.depth_option)
        expected = list(depths) if several else [depths]
        if [stage.depth for stage in self.stages] != expected:
            found = ", ".join(f"{stage.depth} in '{stage.path}'" for stage in self.stages)
            raise UsageError(
                f"{type(self.model).__name__} has {self.depth_option}={depths}, "
                f"but {found} were found; name the lists with blocks= (command line: `stepify --blocks`)"
            )


def number_layers(blocks: Iterable[nn.Module]) -> None:
    """The cache finds a layer's keys by its number."""
    for index, block in enumerate(blocks):
        for module in block.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = index  # type: ignore[assignment]  # a plain attribute


def runs_on_meta(model: nn.Module, example: tuple[Any, ...]) -> bool:
    try:
        run_on_meta(model, example)
    except Exception:  # noqa: BLE001  # whatever a head raises
        return False
    return True


def forget_recorders(model: nn.Module) -> None:
    """Remove the hooks that record hidden states and attentions; the library adds them again at the next pass.

    It adds them once, so blocks that come later would not be recorded.
    """
    for module in model.modules():
        if hasattr(module, "_output_capturing_hooks_installed"):
            module._output_capturing_hooks_installed = False  # type: ignore[assignment]  # a plain attribute
        for key, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__name__", "") == "output_capturing_hook":
                del module._forward_hooks[key]


def keep_checkpointing(old: nn.Module, new: Iterable[nn.Module]) -> None:
    """Gradient checkpointing that was on before stays on in the new blocks."""
    state = {name: vars(old)[name] for name in CHECKPOINTING if name in vars(old)}
    for block in new:
        for name, value in state.items():
            setattr(block, name, value)


def _core(model: Any) -> nn.Module:
    """The model without its head; of encoder and decoder, the encoder."""
    core: nn.Module = model.base_model
    if model.config.is_encoder_decoder and callable(getattr(core, "get_encoder", None)) and hasattr(core, "encoder"):
        core = core.encoder  # type: ignore[assignment]  # a module
    return core


def _first(names: Sequence[str], config: Any) -> str | None:
    return next((name for name in names if getattr(config, name, None) is not None), None)


def _scaled(size: int, width: int, full: int) -> int:
    """An inner width in proportion, a multiple of 8 where the whole one is."""
    unit = 8 if size % 8 == 0 and size >= 64 else 1
    return max(unit, unit * round(size * width / full / unit))


def _example(core: Any, config: Any) -> torch.Tensor:
    wants = core.main_input_name
    if wants == "input_ids":
        longest = getattr(config, "max_position_embeddings", None) or TOKENS
        return torch.zeros(1, min(TOKENS, longest), dtype=torch.long)
    if wants == "pixel_values" and isinstance(getattr(config, "num_channels", None), int):
        side = getattr(config, "image_size", None) or 224
        return torch.zeros(1, config.num_channels, *(side if isinstance(side, (tuple, list)) else (side, side)))
    if wants == "input_features" and hasattr(config, "num_mel_bins"):
        return torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
    raise UsageError(f"{type(core).__name__} takes '{wants}', for which no example is known; "
                     "from Python, give one with example=(…)")


def _shrink_vocabulary(config: Any) -> None:
    """A donor's embedding is thrown away, so it need not hold more than its padding."""
    padding = getattr(config, "pad_token_id", None)
    if isinstance(getattr(config, "vocab_size", None), int):
        config.vocab_size = min(config.vocab_size, (padding if isinstance(padding, int) else 0) + 1)
