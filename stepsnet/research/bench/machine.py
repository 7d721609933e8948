"""What the figures were measured on: the kind of machine, never its name; and its limit, the fastest matrix product it does."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SIZES = (512, 1024, 2048)
REPEATS = 5


def describe_machine() -> dict[str, Any]:
    """CPU, cores, threads in use, versions and the day."""
    return {
        "cpu": cpu_kind(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16_instructions": [flag for flag in ("avx512_bf16", "amx_bf16") if flag in cpu_facts().get("flags", "").split()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def cpu_kind(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As the processor calls itself; family and model besides, because a virtual one often has no more than a brand."""
    facts = cpu_facts(cpuinfo)
    name = facts.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if {"cpu family", "model"} <= facts.keys() else name


def cpu_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """What Linux says about the first processor; nothing elsewhere."""
    facts: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else ():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    return facts


def matmul_peak(
    dtype: str, *, sizes: tuple[int, ...] | None = None, repeats: int = REPEATS, clock: Callable[[], float] = time.perf_counter,
) -> float:
    """FLOP/s of the fastest square matrix product, two for every multiply-accumulate: the limit that shares are shares of."""
    best = 0.0
    with torch.inference_mode():
        for size in sizes or SIZES:
            left, right = (torch.randn(size, size).to(DTYPES[dtype]) for _ in range(2))
            left @ right  # the first of a shape also chooses and prepares a kernel
            for _ in range(repeats):
                began = clock()
                left @ right
                best = max(best, 2 * size**3 / max(clock() - began, 1e-9))
    return best
