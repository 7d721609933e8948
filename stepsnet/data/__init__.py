"""Data sets, and random numbers that depend only on a key: a resumed run draws the same as an uninterrupted one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_MASK = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """A 63-bit hash of a few integers: SplitMix64's finaliser after each one, about a microsecond in all."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block, and restore its state afterwards.

    `torch.manual_seed` would also reseed the accelerators, which the training loop's dropout uses.
    """
    import torch  # here, so that processes that only prepare text do not import it

    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
