"""Memory: what a batch twice the size adds to the whole process (Figure 6d), and the exact bytes kept for the backward pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stepsnet.errors import UsageError
from stepsnet.models import Model, create_model, load_model
from stepsnet.research.bench.machine import describe_machine
from stepsnet.research.bench.passes import WHAT_IS_TIMED, random_batch
from stepsnet.research.bench.saved import saved_bytes

SAVED_BATCH = 2  # what is saved grows with the batch in proportion, so a small one tells


@dataclass(frozen=True)
class Subject:
    """How a child process gets its model: by name or from a file."""

    name: str
    file: Path | None = None

    def make(self) -> Model:
        return create_model(self.name) if self.file is None else load_model(self.file)


@dataclass(frozen=True)
class MemoryRow:
    model: str
    mode: str
    macs: int
    blocks: int | None
    batches: list[int]
    peaks: list[int]
    """Peak resident bytes of the process, one a batch size; empty where only saved bytes were asked for."""
    growth: int | None
    """From the first batch size to the last."""
    saved_per_input: int | None
    """Bytes kept for backward, per picture or sequence."""


def run_memory(
    subjects: Sequence[Subject], *, batches: Sequence[int] = (32, 64), modes: Sequence[str] = ("training",), measure: bool = True,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Every subject in every mode; each peak is of a child process of its own, because a peak never comes down again."""
    rows = []
    for subject in subjects:
        model = subject.make()
        cost = model.closed_form()
        for mode in modes:
            peaks = []
            for batch in batches if measure else ():
                peaks.append(peak_in_child(subject, mode, batch))
                tick()
            growth = peaks[-1] - peaks[0] if peaks else None
            saved = saved_per_input(model) if mode == "training" else None
            rows.append(MemoryRow(subject.name, mode, cost.macs, cost.blocks, list(batches), peaks, growth, saved))
    return {
        "benchmark": "memory",
        "machine": describe_machine(),
        "timed": {mode: WHAT_IS_TIMED[mode] for mode in modes},
        "rows": [asdict(row) for row in rows],
    }


def saved_per_input(model: Model) -> int:
    """Bytes kept for backward by one picture or sequence of a batch, in fp32, rounded down."""
    return saved_bytes(model.train(), random_batch(model, SAVED_BATCH)) // SAVED_BATCH


def peak_in_child(subject: Subject, mode: str, batch: int) -> int:
    """Start a process that makes the model, runs it on a batch and says how much memory it had at most."""
    file = None if subject.file is None else str(subject.file)
    task = json.dumps({"name": subject.name, "file": file, "mode": mode, "batch": batch, "threads": torch.get_num_threads()})
    child = subprocess.run([sys.executable, "-m", "stepsnet.research.bench.child", task], capture_output=True, text=True, check=False)
    if child.returncode:
        why = child.stderr.strip().rpartition("\n")[2] or "without a word, as for want of memory"
        raise UsageError(f"{subject.name} at batch {batch}: the process that was measured ended with {child.returncode}: {why}")
    return int(json.loads(child.stdout)["peak"])
