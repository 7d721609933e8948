"""How timings are made: contenders take turns in one process, and results name the machine."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.cpu import bf16_instructions, cpu_facts
from stepsnet.errors import UsageError
from stepsnet.models import Model, VisionModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODES = ("inference", "training")
TIMES_FORWARD = {"inference": 1, "training": 3}
"""A training step costs three forward passes: every product has two gradients, of its input and of its weight."""
WHAT_IS_TIMED = {
    "inference": "one forward pass under inference_mode, evaluation mode",
    "training": "forward pass, cross-entropy, backward pass, gradients set to None; no optimiser, no stochastic depth; "
    "bf16 by autocast",
}
PEAK_SIZES = (128, 256, 512, 1024, 2048)
PEAK_REPEATS = 5
PEAK_SECONDS = 2.0


@dataclass(frozen=True)
class Quartiles:
    """The median of some numbers and their quartiles."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


def speed_ratios(reference: Sequence[float], own: Sequence[float]) -> list[float]:
    """How many times as fast as the reference, round by round: a slow round slows both and cancels."""
    return [theirs / ours for theirs, ours in zip(reference, own, strict=True)]


def turns(contenders: int, rounds: int) -> list[list[int]]:
    """The order in each round. Each round starts one contender later, so that the predecessor changes."""
    return [[(first + offset) % contenders for offset in range(contenders)] for first in range(rounds)]


def interleave(
    passes: Sequence[Callable[[], object]], *, rounds: int, warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter, tick: Callable[[], None] = lambda: None,
) -> list[list[float]]:
    """Seconds of each pass per round, after `warm_up` rounds that are not kept. `tick` is called after every pass."""
    seconds: list[list[float]] = [[] for _ in passes]
    with _without_garbage_collection():
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
def _without_garbage_collection() -> Iterator[None]:
    """One collection before, none inside."""
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
    """Set the number of torch threads inside; None keeps it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_batch(model: Model, batch: int) -> Tensor:
    """Inputs of the model's size: noise for images, random tokens for text."""
    shape = (batch, *model.input_size)
    if isinstance(model, VisionModel):
        return torch.randn(shape)
    return torch.randint(model.default_cfg["vocab_size"], shape)


def inference_pass(forward: Callable[[Tensor], Any], x: Tensor) -> Callable[[], object]:
    def one_pass() -> object:
        with torch.inference_mode():
            return forward(x)

    return one_pass


def count_classes(model: Model) -> int:
    """The number of classes, or of tokens."""
    return model.num_classes if isinstance(model, VisionModel) else int(model.default_cfg["vocab_size"])


def training_pass(module: nn.Module, x: Tensor, classes: int, *, bf16: bool) -> Callable[[], object]:
    """Forward, loss, backward, gradients set to None."""
    if classes < 2:
        raise UsageError(f"a training step needs at least 2 classes; this {type(module).__name__} has {classes}")
    targets = torch.randint(classes, x.shape[:1] if x.is_floating_point() else x.shape)

    def one_step() -> object:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = module(x)
            loss = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
        loss.backward()
        module.zero_grad(set_to_none=True)
        return loss.detach()

    return one_step


def describe_machine() -> dict[str, Any]:
    """CPU, cores, threads in use, versions and date; never the machine's name."""
    return {
        "cpu": cpu_kind(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16_instructions": bf16_instructions(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def cpu_kind(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name with family and model, because a virtual processor often names only a brand."""
    facts = cpu_facts(cpuinfo)
    name = facts.get("model name") or platform.processor() or platform.machine()
    known = {"cpu family", "model"} <= facts.keys()
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if known else name


def matmul_peak(
    dtype: str, *, sizes: tuple[int, ...] | None = None, seconds: float = PEAK_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """FLOP/s of the fastest square matrix product, two per multiply-accumulate: the machine's practical limit.

    It takes at most `seconds`: a size whose product would take longer than what is left is not tried.
    """
    best, began = 0.0, clock()
    with torch.inference_mode():
        for size in sizes or PEAK_SIZES:
            flops = 2 * size**3
            left, right = (torch.randn(size, size).to(DTYPES[dtype]) for _ in range(2))
            for repeat in range(PEAK_REPEATS + 1):
                start = clock()
                if best and flops / best > began + seconds - start:
                    return best
                left @ right
                if repeat or not best:  # the first product of a shape also selects a kernel
                    best = max(best, flops / max(clock() - start, 1e-9))
    return best
