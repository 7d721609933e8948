"""The axes of a model's input that may vary in an exported file, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import Model, VisionModel
from stepsnet.models.language import Transformer
from stepsnet.models.resnet import ResNet
from stepsnet.models.swin import Swin

LARGEST_BATCH = 4096
LARGEST_SIDE = 1024
SMALLEST_RESNET_SIDE = 32  # below it, the last map is one pixel computed mostly from padding
LONGEST_TEXT = 4096


@dataclass(frozen=True)
class FreeAxis:
    """An axis of the input that may vary: `smallest`, `smallest + step` … `largest`."""

    number: int
    name: str
    smallest: int
    largest: int
    step: int = 1

    def __str__(self) -> str:
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        return f"{self.name} {self.smallest} … {self.largest}{steps}"

    def allows(self, length: int) -> bool:
        return self.smallest <= length <= self.largest and length % self.step == 0

    def dim(self) -> Any:
        """The axis as torch.export's `Dim`."""
        if self.step == 1:
            return torch.export.Dim(self.name, min=self.smallest, max=self.largest)
        return self.step * torch.export.Dim(
            f"_{self.name}", min=self.smallest // self.step, max=self.largest // self.step
        )

    def another(self, than: int) -> int:
        """The next allowed length after `than`, or the previous one at the end of the range."""
        return than + self.step if than + self.step <= self.largest else than - self.step


def batch_axis() -> FreeAxis:
    return FreeAxis(0, "batch", 1, LARGEST_BATCH)


def size_axes(model: Model) -> tuple[FreeAxis, ...]:
    """The axes of image size or text length over which one file can serve a model.

    Swin: windows must fit into the last map, and patch merging must divide every map evenly. If that does not hold at
    the model's own size, there are none. There are none for DeiT, whose positions are for one size.
    """
    if isinstance(model, Swin):
        step = model.patch_embed.patch * 2 ** (len(model.plans) - 1)
        largest = max(LARGEST_SIDE, 2 * step * model.window, *model.input_size) // step * step
        sides = FreeAxis(2, "height", step * model.window, largest, step)
    elif isinstance(model, ResNet):
        sides = FreeAxis(2, "height", SMALLEST_RESNET_SIDE, max(LARGEST_SIDE, *model.input_size))
    elif isinstance(model, VisionModel):
        return ()
    else:
        shortest = 1 if isinstance(model, Transformer) else 2  # in models of transformers one token is a special case
        longest = model.default_cfg.get("longest_text") or max(LONGEST_TEXT, *model.input_size)
        return (FreeAxis(1, "tokens", shortest, longest),)
    axes = (sides, FreeAxis(3, "width", sides.smallest, sides.largest, sides.step))
    return axes if all(axis.allows(model.input_size[axis.number - 1]) for axis in axes) else ()


def example_input(model: Model, shape: tuple[int, ...]) -> Tensor:
    """Random images or tokens from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, VisionModel):
        return torch.randn(shape, generator=generator)
    return torch.randint(int(model.default_cfg["vocab_size"]), shape, generator=generator)


def check_exportable(model: Model) -> None:
    """Refuse models that cannot be exported: detectors, segmenters, and models not in float32 on the CPU."""
    if not isinstance(model, VisionModel) and "vocab_size" not in model.default_cfg:
        kind = model.default_cfg.get("architecture", type(model).__name__)
        raise UsageError(
            f"{kind} cannot be exported: only classifiers and language models can. The parts of a detector or a "
            "segmenter around its backbone cannot be traced; a backbone trained as a classifier can be exported."
        )
    for name, weight in model.named_parameters():
        if weight.dtype is not torch.float32 or weight.device.type != "cpu":
            held = f"in {str(weight.dtype).removeprefix('torch.')} on {weight.device}"
            raise UsageError(f"a model must be in float32 on the CPU, but {name} is {held}; use model.float().cpu()")


def at_size(model: Model, height: int, width: int) -> None:
    """Change a model's image size in place. DeiT's position embedding is interpolated once."""
    if not isinstance(model, VisionModel):
        raise UsageError(f"{model.family} takes text, which has no image size")
    model.set_input_size((height, width))


def has_batch_norms(model: Model) -> None:
    """Refuse a model without batch norms."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise UsageError(f"there is nothing to fold in a {model.family}: it has no batch norms")
