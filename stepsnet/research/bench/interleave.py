"""Contenders take turns in one process, so that whatever else the machine does meanwhile is done to all of them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch


def turns(contenders: int, rounds: int) -> list[list[int]]:
    """Who runs when: every round all of them, and each round begins one further on, so that no one always follows the same other."""
    return [[(first + offset) % contenders for offset in range(contenders)] for first in range(rounds)]


def interleave(
    passes: Sequence[Callable[[], object]], *, rounds: int, warm_up: int = 1, clock: Callable[[], float] = time.perf_counter,
    tick: Callable[[], None] = lambda: None,
) -> list[list[float]]:
    """Seconds of each pass, round by round, after `warm_up` rounds that are not kept. `tick` is called after every pass."""
    seconds: list[list[float]] = [[] for _ in passes]
    with _undisturbed_by_the_collector():
        for number, order in enumerate(turns(len(passes), warm_up + rounds)):
            for index in order:
                began = clock()
                passes[index]()
                took = clock() - began
                if number >= warm_up:
                    seconds[index].append(took)
                tick()
    return seconds


@contextmanager
def _undisturbed_by_the_collector() -> Iterator[None]:
    """One collection before, none while the clock runs."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """That many threads of torch for a while; None leaves what it uses."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
