"""Speed and memory, always side by side in one run: nothing is compared across processes, minutes or machines."""

from stepsnet.research.bench.growth import run_growth, run_rows
from stepsnet.research.bench.interleave import interleave, threads
from stepsnet.research.bench.memory import Subject, run_memory
from stepsnet.research.bench.saved import saved_bytes
from stepsnet.research.bench.speed import SpeedSettings, run_speed

__all__ = ["SpeedSettings", "Subject", "interleave", "run_growth", "run_memory", "run_rows", "run_speed", "saved_bytes", "threads"]
