"""Seconds of one block of every width, measured once for each CPU, number of threads, precision and batch, and kept in
a cache file."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from stepsnet.files import read_json, write_json
from stepsnet.planner.search import StageCosts
from stepsnet.planner.subject import Counted, Subject, probe_plan

ROUNDS = 9
SHORTEST = 0.01
"""Seconds that one timing lasts at least: a block is run several times for it, so that the clock's resolution does not
matter."""

Tick = Callable[[int, int], None]
"""Called with (done, total) after each timing, for a progress bar."""


def with_seconds(counted: Counted, subject: Subject, batch: int, tick: Tick = lambda _done, _total: None) -> Counted:
    """`counted` with measured seconds per block and for everything outside the blocks."""
    seconds = block_seconds(counted, subject, batch, tick)
    stages = []
    for number, stage in enumerate(counted.stages):
        costs = {width: cost + np.array([0, 0, seconds[f"{number}:{width}"]]) for width, cost in stage.costs.items()}
        stages.append(StageCosts(stage.width, stage.depth, costs))
    inside = sum(stage.plain_cost[2] for stage in stages)
    outside = max(seconds["plain"] - inside, 0.0)
    return Counted(tuple(stages), counted.fixed + np.array([0, 0, outside]))


def block_seconds(
    counted: Counted, subject: Subject, batch: int, tick: Tick = lambda _done, _total: None
) -> dict[str, float]:
    """Median seconds by "stage:width", and of the whole plain model as "plain"; from the cache where all are there."""
    params, macs, _ = counted.fixed + sum(cost for stage in counted.stages for cost in stage.costs.values())
    same = f"{params:.0f} parameters {macs:.0f} MACs"  # of all widths: models of one name may differ in their options
    path, key = cache_path(), f"{subject.name} {same} batch {batch} {_conditions()}"
    cache = read_json(path)
    plan, places = probe_plan(subject)
    names = [f"{stage}:{width}" for stage, width in places]
    if not {*names, "plain"} <= cache.get(key, {}).keys():
        probe, plain = subject.build(plan, "cpu"), subject.build("; ".join(map(str, subject.plain)), "cpu")
        calls = _captured_calls(subject, probe, batch)
        inputs = subject.inputs(plain, batch, "cpu")
        found = interleaved([*calls, lambda: plain(*inputs)], tick)
        cache[key] = dict(zip([*names, "plain"], found, strict=True))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, cache)
    return {name: float(value) for name, value in cache[key].items()}


def measure(subject: Subject, plans: Sequence[str], batch: int) -> list[float]:
    """Seconds of one forward pass of the model under each plan, end to end; all take turns."""
    models = [subject.build(plan, "cpu") for plan in plans]
    return interleaved([partial(model, *subject.inputs(model, batch, "cpu")) for model in models])


@torch.inference_mode()
def interleaved(calls: Sequence[Callable[[], object]], tick: Tick = lambda _done, _total: None) -> list[float]:
    """Median seconds of each call. All calls take turns, so that other load on the machine affects all of them."""
    repeats = []
    for call in calls:
        call()
        began = time.perf_counter()
        call()
        repeats.append(max(1, round(SHORTEST / max(time.perf_counter() - began, 1e-6))))
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(ROUNDS):
        for index, call in enumerate(calls):
            began = time.perf_counter()
            for _ in range(repeats[index]):
                call()
            seconds[index].append((time.perf_counter() - began) / repeats[index])
            tick(turn * len(calls) + index + 1, ROUNDS * len(calls))
    return [median(values) for values in seconds]


def _captured_calls(subject: Subject, probe: nn.Module, batch: int) -> list[Callable[[], object]]:
    """One call for each block of the probe, with the arguments that it gets inside the network."""
    blocks = subject.blocks(probe)
    captured: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hooks = [
        block.register_forward_pre_hook(lambda _block, args, kwargs: captured.append((args, kwargs)), with_kwargs=True)
        for block in blocks
    ]
    with torch.inference_mode():
        probe(*subject.inputs(probe, batch, "cpu"))
    for hook in hooks:
        hook.remove()

    def call_of(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object]:
        return lambda: block(*args, **kwargs)

    return [call_of(block, *arguments) for block, arguments in zip(blocks, captured, strict=True)]


def _conditions() -> str:
    """What the seconds depend on besides model and batch. No names of hosts."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    cpu = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu} {capability} threads {torch.get_num_threads()} {torch.get_default_dtype()} torch {torch.__version__}"


def cache_path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "stepsnet" / "latency.json"
