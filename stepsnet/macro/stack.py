"""F_i: a residual network of one width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Stack(nn.Module):
    """D_i blocks one after the other; with none, what comes in goes out.

    `enter` and `leave` frame the blocks for residual designs that carry several streams between them (hyper-connections).
    """

    def __init__(self, blocks: Iterable[nn.Module], enter: nn.Module | None = None, leave: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.enter = nn.Identity() if enter is None else enter
        self.leave = nn.Identity() if leave is None else leave
        self.grad_checkpointing = False

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = self.run(block, x, *context)
        return self.leave(x)

    def walk(self, x: Tensor, *context: Any) -> Iterator[Tensor]:
        """After each block, what the stack would return if it ended there."""
        x = self.enter(x)
        for block in self.blocks:
            x = self.run(block, x, *context)
            yield self.leave(x)

    def run(self, block: nn.Module, x: Tensor, *context: Any) -> Tensor:
        if self.grad_checkpointing and self.training:
            return checkpoint(block, x, *context, use_reentrant=False)
        return block(x, *context)
