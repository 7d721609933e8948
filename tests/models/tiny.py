"""The tiny models of all families, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stepsnet.models import Model, VisionModel, create_model, list_models
from stepsnet.models.language import Transformer

TINY = list_models("test_*")
VISION = [name for name in TINY if "transformer" not in name]
STEPS = [name for name in TINY if name.startswith("test_steps_")]

# Every tiny model, and the Steps ones under the other macro and the other join.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in TINY},
    **{f"{name}-reverse": (name, {"macro": "reverse"}) for name in STEPS},
    **{f"{name}-matched": (name, {"join": "matched_grad"}) for name in STEPS},
}


def variant(key: str, **options: Any) -> Model:
    name, own = VARIANTS[key]
    model: Model = create_model(name, **own, **options)
    return model


def vision(key: str, **options: Any) -> VisionModel:
    model = variant(key, **options)
    assert isinstance(model, VisionModel)
    return model


def language(name: str, **options: Any) -> Transformer:
    model = create_model(name, **options)
    assert isinstance(model, Transformer)
    return model


def example(model: Model, height: int = 32, width: int | None = None, batch: int = 2) -> Tensor:
    """Images of that size, or texts of `height` tokens."""
    if isinstance(model, Transformer):
        return torch.randint(model.vocab_size, (batch, height))
    return torch.randn(batch, model.input_size[0], height, width or height)


AnyModel = TypeVar("AnyModel", bound=Model)


def shake(model: AnyModel) -> AnyModel:
    """No gain at zero and no bias at rest, so that every part matters to the output."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("scale"):
                parameter.add_(torch.rand_like(parameter).add_(0.1))
    return model


def check_same(loaded: nn.Module, model: nn.Module, x: Tensor | Callable[[Any], Tensor]) -> None:
    """Weights are bit-equal; outputs differ by at most 1e-5, since mapped weights are aligned differently.

    `x` is an input, or a function that runs a model.
    """
    run = x if callable(x) else lambda network: network(x)
    own = model.state_dict()
    assert loaded.state_dict().keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in loaded.state_dict().items())
    torch.testing.assert_close(run(loaded), run(model), rtol=1e-5, atol=1e-5)
