"""The process whose memory is measured: `python -m stepsnet.research.bench.child TASK` makes a model, runs it and prints its peak."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stepsnet.research.bench.contenders import How, ours
from stepsnet.research.bench.memory import Subject
from stepsnet.research.bench.passes import random_batch


def measure_here(task: Mapping[str, Any]) -> int:
    """One pass, then the peak: it is reached where the forward pass ends, when everything saved for backward is there."""
    torch.set_num_threads(task["threads"])
    model = Subject(task["name"], task["file"] and Path(task["file"])).make()
    ours("", model, How(task["mode"])).one_pass(random_batch(model, task["batch"]))()
    return peak_resident_bytes()


def peak_resident_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The most memory this program has had. Linux' own count per program: `ru_maxrss` also remembers the one that started it."""
    if status.is_file():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps({"peak": measure_here(json.loads(sys.argv[1]))}))
