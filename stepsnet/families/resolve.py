"""Where a name will do for a model."""

from __future__ import annotations

from torch import nn

from stepsnet.cost import Cost, count_cost
from stepsnet.families.registry import create_model


def cost_of(model: nn.Module | str, *, input_size: tuple[int, ...] | None = None) -> Cost:
    """Blocks, layers, parameters and MACs of a model or of a name, counted on the meta device."""
    return count_cost(create_model(model, device="meta") if isinstance(model, str) else model, input_size=input_size)
