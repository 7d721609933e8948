"""StepPlan: how wide and how deep each step is. This module does not use torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from stepsnet.errors import UsageError

MOST_CHANNELS, MOST_BLOCKS = 1 << 20, 100_000  # what can be built at all
_STEP = re.compile(r"(\d+)\s*[x×]\s*(\d+)")


@dataclass(frozen=True)
class StepPlan:
    """`widths[i]` channels and `depths[i]` blocks for step i: "192x12, 272x6, 384x6".

    Widths grow from step to step. `StepsNet` (Eq. 5) takes the steps in this order, `ReverseStepsNet` (Eq. 6) from the
    end. With `any_order` a step may also be narrower than the one before, as in "384x4, 192x8, 384x4": the channels
    beyond its width wait. Only `stepify` takes such plans, since the state keeps its full width there.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    any_order: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.depths):
            raise UsageError(
                f"a plan needs at least one step and one depth per width, got {self.widths} and {self.depths}"
            )
        if min(self.widths) < 1 or min(self.depths) < 0:
            raise UsageError(f"the plan '{self}' needs positive widths and no negative depths")
        if max(self.widths) > MOST_CHANNELS or sum(self.depths) > MOST_BLOCKS:
            raise UsageError(f"the plan '{self}' is too large; the most are {MOST_CHANNELS:,} channels and "
                             f"{MOST_BLOCKS:,} blocks")
        for narrow, wide in pairwise(self.widths):
            if wide == narrow if self.any_order else wide <= narrow:
                why = "every step must be wider than the one before"
                if wide < narrow:
                    why += "; for wide to narrow, write it narrow to wide and give macro='reverse'"
                    why += "; only stepify takes any order"
                why = "neighbouring steps must differ" if self.any_order else why
                raise UsageError(f"the plan '{self}' goes from width {narrow} to {wide}: {why}")

    @classmethod
    def parse(cls, text: str, *, any_order: bool = False) -> StepPlan:
        """Read "192x12, 272x6, 384x6"; the inverse of `str(plan)`."""
        steps = []
        for part in text.split(","):
            match = _STEP.fullmatch(part.strip())
            if match is None:
                example = "a plan looks like '192x12, 272x6, 384x6'"
                raise UsageError(f"'{part.strip()}' in the plan '{text}' is not WIDTHxBLOCKS; {example}")
            steps.append((int(match[1]), int(match[2])))
        return cls(tuple(width for width, _ in steps), tuple(depth for _, depth in steps), any_order)

    @classmethod
    def residual(cls, width: int, depth: int) -> StepPlan:
        """One step: the plain residual stack."""
        return cls((width,), (depth,))

    @classmethod
    def default(cls, width: int, depth: int, steps: int, round_width: Callable[[float], int] = round) -> StepPlan:
        """The paper's plan for a plain stack of `depth` blocks of `width` (Sec. 4.1 and 5.5).

        Each step is √2 narrower than the next, so a block costs half. Half of a step's blocks are replaced by twice as
        many in the step before; of an odd number, the larger half. 384x12 becomes 192x12, 272x6, 384x6. ResNet-34's
        256x5 becomes 64x6, 90x3, 128x3, 181x3, 256x2 (Tables 8, 12, 13).
        """
        if steps < 1:
            raise UsageError(f"the number of steps is at least 1 (the plain residual network), not {steps}")
        most = 2 * width.bit_length()  # each step is √2 narrower: further ones would be narrower than one channel
        widths = [width if i == 0 else round_width(width / 2 ** (i / 2)) for i in range(min(steps, most))][::-1]
        if steps > most or widths[0] < 1 or any(narrow >= wide for narrow, wide in pairwise(widths)):
            raise UsageError(f"{steps} steps, each √2 narrower than the next, do not fit into width {width} "
                             f"(widths {widths}); ask for fewer steps")
        depths = [depth]
        for _ in range(steps - 1):
            first = depths[0]
            depths = [2 * (first - first // 2), first // 2, *depths[1:]]
        return cls(tuple(widths), tuple(depths))

    @property
    def blocks(self) -> int:
        return sum(self.depths)

    @property
    def width(self) -> int:
        """The width of the last step, of the input and of the output."""
        return self.widths[-1]

    @property
    def slices(self) -> tuple[int, ...]:
        """d_i of Eq. 5: how many channels each step adds."""
        return slices_of(self.widths)

    def __len__(self) -> int:
        return len(self.widths)

    def __str__(self) -> str:
        return ", ".join(f"{width}x{depth}" for width, depth in zip(self.widths, self.depths, strict=True))


def slices_of(widths: Iterable[int]) -> tuple[int, ...]:
    """d_1 = C_1 and d_i = C_i - C_{i-1}."""
    widths = tuple(widths)
    return tuple(wide - narrow for narrow, wide in pairwise((0, *widths)))
