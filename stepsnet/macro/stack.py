"""F_i, a residual network of one width, and the walk from a plan to a network of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepsnet.errors import UsageError, nearest
from stepsnet.macro.network import ReverseStepsNet, StepsNet
from stepsnet.macro.plan import StepPlan

MACROS = ("steps", "reverse")


class Stack(nn.Module):
    """D_i blocks one after the other; with none, what comes in goes out.

    `enter` and `leave` frame the blocks for residual designs that carry several streams between them (hyper-connections).
    """

    def __init__(self, blocks: Iterable[nn.Module], enter: nn.Module | None = None, leave: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.enter = enter
        self.leave = leave
        self.grad_checkpointing = False

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        if self.enter is not None:
            x = self.enter(x)
        for block in self.blocks:
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, *context, use_reentrant=False)
            else:
                x = block(x, *context)
        return x if self.leave is None else self.leave(x)


def build_network(
    plan: StepPlan,
    make_stack: Callable[[int, int], nn.Module],
    *,
    macro: str = "steps",
    join: str | nn.Module | Sequence[str | nn.Module] = "plain",
    channel_dim: int = -1,
    expansion: int = 1,
) -> StepsNet | ReverseStepsNet:
    """The network of a plan; `make_stack(width, depth)` makes F_i and is called in the order of execution.

    Plans are always written narrow to wide; the reverse macro walks them from the end. `expansion` is how many channels
    of the stream one unit of plan width stands for (4 in bottleneck ResNets, whose plans count the bottleneck).
    """
    steps = list(zip(plan.widths, plan.depths, strict=True))
    if macro == "steps":
        stacks = [make_stack(width, depth) for width, depth in steps]
        return StepsNet(stacks, [width * expansion for width in plan.widths], channel_dim, join)
    if macro == "reverse":
        if join != "plain":
            raise UsageError("the reverse design (Eq. 6) has no joins, so join stays 'plain' with macro='reverse'")
        stacks = [make_stack(width, depth) for width, depth in reversed(steps)]
        return ReverseStepsNet(stacks, [width * expansion for width in reversed(plan.widths)], channel_dim)
    raise UsageError(f"there is no macro '{macro}' (known: {', '.join(MACROS)}{nearest(macro, MACROS)})")
