"""What the results of all analyses share: JSON that any parser reads, names of blocks and steps, lines that break between stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stepsnet.files import finite


class Result:
    """A frozen dataclass of numbers and lists of numbers."""

    def to_json(self) -> dict[str, Any]:
        """The fields by name; a number that is not finite, which JSON does not know, as None."""
        assert dataclasses.is_dataclass(self)
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: finite(value) for name, value in fields.items()}


def numbers(tensors: Sequence[Tensor]) -> list[float]:
    """Scalars as Python numbers, fetched at once."""
    return torch.stack([tensor.detach().double().cpu() for tensor in tensors]).tolist() if tensors else []


def step_label(stage: int, step: int, stages: int) -> str:
    """"step 2", or "stage 3, step 2" where there are several stages."""
    return f"stage {stage + 1}, step {step + 1}" if stages > 1 else f"step {step + 1}"


def wide(z: Tensor) -> Tensor:
    """In fp32 at least."""
    return z if z.dtype == torch.float64 else z.float()
