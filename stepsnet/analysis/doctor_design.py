"""What a model has already, so that nobody is advised to take it, and what it could be cut into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from stepsnet.analysis.states import macro_nets
from stepsnet.errors import UsageError
from stepsnet.models import Model, create_model

STARTS_AT_ZERO = ("rezero", "skipinit")
SCALES = ("gamma", "layer_scale", "layerscale")
"""How LayerScale's numbers are called where they lie in the block itself: ConvNeXt, BEiT, CaiT."""
QUIET = 1e-3
"""A branch that starts at a thousandth of its size, or less, could hardly start lower."""


@dataclass(frozen=True)
class Design:
    """Whether a model has several steps, and whether its branches are scaled by learned numbers (LayerScale, ReZero)."""

    steps: bool = False
    scales: bool = False
    quiet: bool = False
    """Whether all these numbers start next to zero."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """The options that make three matched steps of it; none if it has steps already, or if its family finds none for its widths."""


def design_of(model: nn.Module) -> Design:
    """By what its modules are, and where they are not ours by what they and their parameters are called."""
    steps = any(len(net.steps) > 1 for net in macro_nets(model))
    starts = [start for module in model.modules() if (start := _start(module)) is not None]
    return Design(steps, bool(starts), bool(starts) and max(starts) <= QUIET, {} if steps else _cut(model))


def _start(module: nn.Module) -> float | None:
    """Where the learned scales of a module's branches start, infinity if it does not say; None if it has none."""
    kind = type(module).__name__.lower()
    if any(word in kind for word in STARTS_AT_ZERO):
        return 0.0
    own = (name for name, _ in module.named_parameters(recurse=False))
    if "layerscale" not in kind and ("norm" in kind or not any(name.startswith(SCALES) for name in own)):  # norms call theirs γ, too
        return None
    start = getattr(module, "start", getattr(module, "init_values", None))  # as ours and timm's say it
    return float(start) if isinstance(start, int | float) else math.inf


def _cut(model: nn.Module) -> dict[str, str]:
    """`plan=3`, with the width and the blocks of the model where it has a plan of its own, for the number counts from its name's."""
    changes = {"plan": "3", "join": "matched"}
    made = next((module for module in model.modules() if isinstance(module, Model)), None)
    if made is None or not made.default_cfg:
        return changes
    options: dict[str, Any] = made.default_cfg["options"]
    if options.get("macro", "steps") != "steps":
        changes["macro"] = "steps"  # others have no joins
    sizes = {} if options.get("plan") is None else _sizes(made, "depths" in options)
    parts = ("join", "macro", "residual")  # modules of the user's, perhaps, which another model must not take
    others = {key: value for key, value in options.items() if key not in parts}
    try:
        stepped = create_model(made.default_cfg["architecture"], device="meta", **(others | sizes | {"plan": 3}))
    except UsageError:
        return {}
    as_wide = [plan.width for plan in stepped.plans] == [plan.width for plan in made.plans]
    return changes | {key: str(size) for key, size in sizes.items()} if as_wide else {}


def _sizes(model: Model, staged: bool) -> dict[str, Any]:
    """What a plain model of these depths is made from, if its widths, where it is staged, double from stage to stage."""
    depths = [plan.blocks for plan in model.plans]
    return {"embed_dim": model.plans[0].width, **({"depths": depths} if staged else {"depth": depths[0]})}
