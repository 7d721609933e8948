"""What a model has already, so that nobody is advised to take it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from stepsnet.analysis.states import macro_nets

SCALED_TYPES = ("layerscale", "rezero", "skipinit")
SCALES = ("gamma", "layer_scale", "layerscale")
"""How LayerScale's numbers are called where they lie in the block itself: ConvNeXt, BEiT, CaiT."""


@dataclass(frozen=True)
class Design:
    """Whether a model has several steps, and whether its branches are scaled by learned numbers (LayerScale, ReZero)."""

    steps: bool = False
    scales: bool = False


def design_of(model: nn.Module) -> Design:
    """By what its modules are, and where they are not ours by what they and their parameters are called."""
    return Design(steps=any(len(net.steps) > 1 for net in macro_nets(model)), scales=any(map(_scales, model.modules())))


def _scales(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    if any(word in kind for word in SCALED_TYPES):
        return True
    own = (name for name, _ in module.named_parameters(recurse=False))
    return "norm" not in kind and any(name.startswith(SCALES) for name in own)  # norms call theirs γ, too
