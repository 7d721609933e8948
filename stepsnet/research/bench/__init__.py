"""Speed and memory, measured side by side in one run; nothing is compared across processes, times or machines."""

from stepsnet.research.bench.growth import run_growth, run_rows
from stepsnet.research.bench.memory import MemorySubject, run_memory, saved_bytes
from stepsnet.research.bench.speed import SpeedSettings, run_speed
from stepsnet.research.bench.timing import interleave, threads

__all__ = [
    "MemorySubject",
    "SpeedSettings",
    "interleave",
    "run_growth",
    "run_memory",
    "run_rows",
    "run_speed",
    "saved_bytes",
    "threads",
]  # fmt: skip
