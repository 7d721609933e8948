"""Bytes that a training step saves for backward, and bytes that joins copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import stepsnet
from stepsnet.macro import Stack, StepsNet
from stepsnet.research.bench import saved_bytes


def test_96_steps_swin_blocks_save_fewer_bytes_than_96_residual_ones() -> None:
    """Table 5(b) at fixed FLOPs, on images of 64 × 64: at most 1/1.3."""
    x = torch.randn(1, 3, 64, 64)
    residual, steps = (
        saved_bytes(stepsnet.create_model(name, img_size=64), x) for name in ("swin_deep_d96", "steps_swin_deep_d96")
    )
    assert steps * 1.3 <= residual


class CopiedBytes(TorchDispatchMode):
    """Bytes written by copies: cat, clone and copy_."""

    COPIES = ("cat", "clone", "copy_", "_to_copy", "constant_pad_nd")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in self.COPIES:
            self.bytes += result.nbytes
        return result


class Still(nn.Module):
    """A block that moves nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def copied(net: Callable[[Tensor], Tensor], x: Tensor) -> int:
    with CopiedBytes() as counter:
        net(x)
    return counter.bytes


@pytest.mark.parametrize("channel_dim", [1, -1])
@pytest.mark.parametrize("join", ["plain", "matched_grad"])
def test_bytes_copied_by_joins_do_not_grow_with_depth(channel_dim: int, join: str) -> None:
    widths = (4, 6, 8)
    x = torch.randn(2, 8, 5, 8)
    moved = [
        copied(StepsNet([Stack(Still() for _ in range(depth)) for _ in widths], widths, channel_dim, join), x)
        for depth in (1, 3, 12)
    ]
    assert len(set(moved)) == 1
    # The first slice once, so that a step may work on it in place, and at each join the new state once: C_1 + C_2 +
    # C_3.
    assert moved[0] == x.nbytes * sum(widths) // widths[-1]


def test_one_step_copies_nothing() -> None:
    assert copied(StepsNet([Stack([Still()])], (8,)), torch.randn(2, 3, 8)) == 0
