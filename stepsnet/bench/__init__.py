"""Speed and memory, always side by side in one run: nothing is compared across processes, minutes or machines."""

from stepsnet.bench.growth import run_growth, run_rows
from stepsnet.bench.interleave import interleave, threads
from stepsnet.bench.memory import Subject, run_memory
from stepsnet.bench.saved import saved_bytes
from stepsnet.bench.speed import SpeedSettings, run_speed

__all__ = ["SpeedSettings", "Subject", "interleave", "run_growth", "run_memory", "run_rows", "run_speed", "saved_bytes", "threads"]
