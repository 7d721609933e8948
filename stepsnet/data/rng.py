"""Random numbers that depend on a key and nothing else, so that a resumed run draws what the uninterrupted one would have drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_MASK = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """63 well-spread bits from a few integers: SplitMix64's finaliser after each one, about a microsecond in all."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Let code that draws from torch's CPU generator draw from `seed`, and put the generator back afterwards.

    `torch.manual_seed` would reseed the accelerators too, which the training loop's own dropout draws from.
    """
    import torch  # here, so that processes which only prepare text do without it

    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
