"""Models of timm as hosts. Blocks come from a donor: the same architecture made by timm's own factory at another width.

Nothing here knows a block class. The factory's options for width, depth and heads are read off the signature of the
model's class (`embed_dim`, `dims`, `channels`, …), and a donor at the model's own width shows whether they mean what
their names say.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping, Sequence
from math import gcd, lcm
from typing import Any

import torch
from torch import nn

from stepsnet.blocks.attention import heads_for
from stepsnet.errors import UsageError
from stepsnet.optional import require
from stepsnet.optional.torchvision import import_torchvision
from stepsnet.surgery.hosts import DonorHost, Stage, first_line

WIDTHS = ("embed_dims", "embed_dim", "dims", "channels")
DEPTHS = ("depths", "depth", "layers", "num_blocks")
HEADS = ("num_heads",)
FROM_PYTHON = "from Python, give make_block=, a function that builds them (the command line cannot)"
ROTARY = re.compile("rope|rotary", re.IGNORECASE)


class TimmHost(DonorHost):
    """`options` are those the model was made with beyond its name, where blocks depend on them: timm does not record
    them."""

    library = "timm"

    def __init__(
        self,
        model: nn.Module,
        heads: str,
        blocks: Sequence[str] | None = None,
        example: tuple[Any, ...] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        import_torchvision()
        self.timm = require("timm", extra="timm")
        cfg: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
        self.name = str(cfg.get("architecture", ""))
        if not self.timm.is_model(self.name):
            raise UsageError(
                f"this {type(model).__name__} was not made by timm.create_model, "
                f"so its blocks cannot be built at another width; {FROM_PYTHON}"
            )
        parameters = inspect.signature(type(model).__init__).parameters
        self.width_option, self.depth_option = _first(WIDTHS, parameters), _first(DEPTHS, parameters)
        self.heads_option = _first(HEADS, parameters)
        if self.width_option is None or self.depth_option is None:
            raise UsageError(
                f"timm's {type(model).__name__} has no option for the width and depth of its blocks, "
                f"so they cannot be built at another width; {FROM_PYTHON}"
            )
        super().__init__(model, heads, blocks, example, {**_recovered(model, parameters), **(options or {})})
        self.tuples = {key: self._several(parameters[key].default) for key in (self.width_option, self.depth_option)}
        self.stages = self._responding()
        self.own_heads = [_heads(block) for block in (self.blocks(stage)[0] for stage in range(len(self.stages)))]
        self.fixed_dim = (
            any(ROTARY.search(type(module).__name__) for module in model.modules()) or self.heads_option is None
        )
        self.depths = self.own_depths = [stage.depth for stage in self.stages]
        self.factors = [1.0] * len(self.stages)
        self._learn_factors()

    def make_example(self, model: nn.Module) -> tuple[Any, ...]:
        return (_example(model, getattr(model, "pretrained_cfg", None) or {}),)

    def unit(self, stage: int) -> int:
        own = self.own_heads[stage]
        if own is not None and self.fixed_dim:
            return self.stages[stage].width // own
        factor = self.factors[stage]
        needed = round(factor) if factor >= 1 else 1
        unit = max(8, needed) if self.stages[stage].width >= 64 else gcd(8, self.stages[stage].width)
        return lcm(own, unit) if own is not None and self.rule == "keep_count" else unit

    def heads(self, width: int, stage: int = 0) -> int | None:
        own, full = self.own_heads[stage], self.stages[stage].width
        if own is None or self.rule == "keep_count":
            return own
        dim = full // own
        return width // dim if width % dim == 0 else heads_for(width, dim)

    def check_width(self, width: int, stage: int) -> None:
        own, full = self.own_heads[stage], self.stages[stage].width
        if own is not None and self.fixed_dim and width % (full // own):
            raise UsageError(f"{self.name} needs heads of {full // own} channels, which do not divide width {width}")
        if own is not None and self.rule == "keep_count" and width % own:
            raise UsageError(f"heads='keep_count': {own} heads do not divide width {width}")
        option = width / self.factors[stage]
        if option != int(option):
            raise UsageError(
                f"stage {stage + 1} of {self.name} cannot be {width} wide: {self.width_option} would be {option:g}"
            )

    def record(self) -> dict[str, Any]:
        made = {**self.options, **self._sizes(None, 0, self.own_depths), **head_options(self.model)}
        return {**super().record(), "name": self.name, "made": made, "options": self.options}

    def settle(self, depths: Sequence[int]) -> None:
        """Stochastic depth along the new depth; and timm's list of features, which in plain transformers has one entry
        a block."""
        self._schedule_drop_path(depths)
        info = getattr(self.model, "feature_info", None)
        if len(depths) != 1 or not isinstance(info, list) or not info:
            return
        path = self.stages[0].path
        if all(str(entry.get("module", "")).rpartition(".")[0] == path for entry in info):
            info[:] = [{**info[-1], "module": f"{path}.{index}"} for index in range(depths[0] + self.stages[0].start)]

    def bookkeeping(self) -> dict[str, Any]:
        info = getattr(self.model, "feature_info", None)
        rates = [
            [part.drop_prob for part in _drop_paths(block)]
            for stage in range(len(self.stages))
            for block in self.blocks(stage)
        ]
        return {
            "feature_info": copy.deepcopy(info),
            "drop_path": rates,
            "paths": [(s.path, s.start, s.depth) for s in self.stages],
        }

    @staticmethod
    def restore(model: nn.Module, bookkeeping: Mapping[str, Any]) -> None:
        if isinstance(info := getattr(model, "feature_info", None), list):
            info[:] = bookkeeping["feature_info"]
        rates = iter(bookkeeping["drop_path"])
        for path, start, depth in bookkeeping["paths"]:
            members: Any = model.get_submodule(path)
            for block in list(members)[start : start + depth]:
                for part, rate in zip(_drop_paths(block), next(rates), strict=True):
                    part.drop_prob = rate

    def _schedule_drop_path(self, depths: Sequence[int]) -> None:
        if not self.options.get("drop_path_rate"):
            return
        self.depths = list(depths)
        donor = self._probe(0)
        for stage, where in enumerate(self.stages):
            for block, other in zip(self.blocks(stage), self.donor_blocks(donor, where), strict=True):
                for own, wanted in zip(_drop_paths(block), _drop_paths(other), strict=False):
                    own.drop_prob = wanted.drop_prob

    def _several(self, default: Any) -> bool:
        """Whether an option has one value for each stage. ResNet's `layers` has no default."""
        return len(self.stages) > 1 if default is inspect.Parameter.empty else isinstance(default, (tuple, list))

    def _responding(self) -> tuple[Stage, ...]:
        """An option that is one number speaks of one list of blocks, the longest; stages in one list are refused."""
        paths = [stage.path for stage in self.stages]
        if shared := [path for path in paths if paths.count(path) > 1]:
            raise UsageError(f"{self.name} has blocks of several kinds or widths in one list, '{shared[0]}'")
        if len(paths) > 1 and not self.tuples[str(self.depth_option)]:
            return (max(self.stages, key=lambda stage: stage.depth),)
        return self.stages

    def make_donor(self, width: int | None, stage: int) -> nn.Module:
        """The architecture with stage `stage` made `width` wide, and as many blocks as the model will have."""
        depths = list(self.depths)
        if width is not None:  # blocks of other stages are not taken from this donor
            depths = [depth if i == stage else 1 for i, depth in enumerate(depths)]
        options = self._sizes(width, stage, depths)
        try:
            donor: nn.Module = self.timm.create_model(
                self.name, pretrained=False, **{"num_classes": 0, **self.options, **options}
            )
        except (TypeError, ValueError, AssertionError, RuntimeError, IndexError, KeyError) as error:
            made = ", ".join(f"{key}={value}" for key, value in options.items())
            raise UsageError(f"timm cannot make {self.name} with {made}: {first_line(error)}") from error
        return donor

    def _sizes(self, width: int | None, stage: int, depths: Sequence[int]) -> dict[str, Any]:
        """Options for width, depth and heads: the model's own, but for the width of one stage."""
        widths = [where.width / factor for where, factor in zip(self.stages, self.factors, strict=True)]
        heads = [own or 1 for own in self.own_heads]
        if width is not None:
            widths[stage] = width / self.factors[stage]
            heads[stage] = self.heads(width, stage) or 1
        depths = [where.start + depth for where, depth in zip(self.stages, depths, strict=True)]
        assert self.width_option is not None
        assert self.depth_option is not None
        several = self.tuples[self.width_option]
        options: dict[str, Any] = {
            self.width_option: tuple(map(round, widths)) if several else round(widths[stage]),
            self.depth_option: tuple(depths) if self.tuples[self.depth_option] else depths[0],
        }
        if self.heads_option is not None and self.own_heads[stage] is not None:
            if not self.tuples[self.depth_option]:
                options[self.heads_option] = heads[0]
            else:  # one number for all widths moves the other stages too: 1 head divides any width
                options[self.heads_option] = tuple(
                    h if several or width is None or i == stage else 1 for i, h in enumerate(heads)
                )
        return options

    def _learn_factors(self) -> None:
        """Channels of the stream for one unit of the width option: 4 in bottleneck ResNets, 2^stage in Swin.

        A donor at the model's own widths must then have the model's own blocks.
        """
        several = self.tuples[str(self.width_option)]
        for stage in range(len(self.stages)):
            donor = self._probe(stage)
            members = [self.donor_blocks(donor, where) for where in self.stages]
            found = self._widths(donor, [blocks[0] for blocks in members], [where.channel_dim for where in self.stages])
            if found[stage] != self.stages[stage].width:
                for i, (width, where) in enumerate(zip(found, self.stages, strict=True)):
                    if several or i == stage:
                        self.factors[i] *= width / where.width
                donor = self._probe(stage)
                members = [self.donor_blocks(donor, where) for where in self.stages]
            for i, blocks in enumerate(members):
                if several or i == stage:
                    self._compare(self.blocks(i), blocks)
            if several:
                break

    def _probe(self, stage: int) -> nn.Module:
        with torch.device("meta"):
            return self.make_donor(None, stage).to(_dtype(self.model))

    def donor_blocks(self, donor: nn.Module, stage: Stage) -> list[nn.Module]:
        """The blocks of a donor that stand where those of a stage are."""
        try:
            members: Any = donor.get_submodule(stage.path)
        except AttributeError:
            members = []
        found = list(members)[stage.start :]
        if not found:
            raise UsageError(
                f"'{self.name}' made at another width has no blocks at '{stage.path}' that could be used"
            )
        return found

    def _compare(self, blocks: Sequence[nn.Module], others: Sequence[nn.Module]) -> None:
        for own, other in zip(blocks, others, strict=False):
            if (wrong := _difference(own, other)) is not None:
                remedy = "from Python, give the options of create_model that the model was made with, as options={…}"
                raise UsageError(f"timm makes '{self.name}' with other blocks than this model ({wrong}); {remedy}")


def _first(names: Sequence[str], parameters: Mapping[str, Any]) -> str | None:
    return next((name for name in names if name in parameters), None)


def _recovered(model: nn.Module, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Options that can be read off the model itself."""
    options: dict[str, Any] = {}
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None and "img_size" in parameters:
        options["img_size"] = tuple(size)
    for name in ("in_chans", "dynamic_img_size"):
        if name in parameters and hasattr(model, name):
            options[name] = getattr(model, name)
    rates = [float(module.drop_prob) for module in _drop_paths(model)]
    if rates and max(rates) > 0:
        options["drop_path_rate"] = max(rates)
    return options


def head_options(model: nn.Module) -> dict[str, Any]:
    """Classes and pooling of the head, which `reset_classifier` changes. Pooling is a name or a module that has it."""
    pool = getattr(model, "global_pool", getattr(getattr(model, "head", None), "global_pool", None))
    found = {"num_classes": getattr(model, "num_classes", None), "global_pool": getattr(pool, "pool_type", pool)}
    return {key: value for key, value in found.items() if isinstance(value, (int, str))}


def _drop_paths(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if type(part).__name__ == "DropPath"]


def _example(model: nn.Module, cfg: Mapping[str, Any]) -> torch.Tensor:
    channels, *sides = cfg.get("input_size", (3, 224, 224))
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return torch.zeros(1, getattr(model, "in_chans", channels), *(size or sides), dtype=_dtype(model))


def _dtype(model: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())


def _heads(block: nn.Module) -> int | None:
    return next(
        (heads for module in block.modules() if isinstance(heads := getattr(module, "num_heads", None), int)), None
    )


def _difference(own: nn.Module, other: nn.Module) -> str | None:
    """The first difference between two blocks in parameters or in what they print; stochastic depth aside."""
    shapes, others = ({key: tuple(value.shape) for key, value in block.state_dict().items()} for block in (own, other))
    for key in shapes.keys() | others.keys():
        if shapes.get(key) != others.get(key):
            return f"{key} is {others.get(key, 'absent')} instead of {shapes.get(key, 'absent')}"
    lines, other_lines = (
        re.sub(r"DropPath\(.*?\)|Identity\(\)", "…", repr(block)).splitlines() for block in (own, other)
    )
    return next(
        (f"{b.strip()} instead of {a.strip()}" for a, b in zip(lines, other_lines, strict=False) if a != b), None
    )
