"""Memory: growth of a process's peak from one batch size to another (Figure 6d), and the bytes saved for backward."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import Model, create_model, load_model
from stepsnet.research.bench.speed import How, ours
from stepsnet.research.bench.timing import WHAT_IS_TIMED, describe_machine, random_batch
from stepsnet.surgery.adopted import adopt

CHILD = "from stepsnet.research.bench import memory; memory.child()"
SAVED_BATCH = 2  # saved bytes are proportional to the batch


@dataclass(frozen=True)
class MemorySubject:
    """A model to measure: a registered name, a file, or a folder of `stepsnet stepify` or `deepen`."""

    name: str
    file: Path | None = None

    def make(self) -> Model:
        if self.file is None:
            return create_model(self.name)
        return adopt(self.file) if self.file.is_dir() else load_model(self.file)


@dataclass(frozen=True)
class MemoryRow:
    model: str
    mode: str
    macs: int
    blocks: int | None
    batches: list[int]
    peaks: list[int]
    """Peak resident bytes of the process, one per batch size; empty without `measure`."""
    growth: int | None
    """From the first batch size to the last."""
    saved_per_input: int | None
    """Bytes saved for backward, per image or sequence."""


def run_memory(
    subjects: Sequence[MemorySubject], *, batches: Sequence[int] = (32, 64), modes: Sequence[str] = ("training",),
    measure: bool = True, tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Every subject in every mode; each peak is measured in its own child process, because a peak never decreases."""
    rows = []
    for subject in subjects:
        model = subject.make()
        cost = model.cost()
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
    """Bytes saved for backward by one image or sequence of a batch, in fp32, rounded down."""
    return saved_bytes(model.train(), random_batch(model, SAVED_BATCH)) // SAVED_BATCH


def peak_in_child(subject: MemorySubject, mode: str, batch: int) -> int:
    """Peak resident bytes of a process that builds the model and runs it on one batch."""
    file = None if subject.file is None else str(subject.file)
    task = {"name": subject.name, "file": file, "mode": mode, "batch": batch, "threads": torch.get_num_threads()}
    words = [sys.executable, "-c", CHILD, json.dumps(task)]
    child = subprocess.run(words, capture_output=True, text=True, check=False)
    if child.returncode:
        why = child.stderr.strip().rpartition("\n")[2] or "no output; possibly out of memory"
        raise UsageError(f"{subject.name} at batch {batch}: the measured process exited with {child.returncode}: {why}")
    return int(json.loads(child.stdout)["peak"])


def child() -> None:
    """Do the task of the command line in this process and print its peak."""
    print(json.dumps({"peak": measure_here(json.loads(sys.argv[1]))}))


def measure_here(task: Mapping[str, Any]) -> int:
    """The peak of this process after one pass; it is reached at the end of forward, when all saved tensors exist."""
    torch.set_num_threads(task["threads"])
    model = MemorySubject(task["name"], task["file"] and Path(task["file"])).make()
    ours("", model, How(task["mode"])).one_pass(random_batch(model, task["batch"]))()
    return peak_resident_bytes()


def peak_resident_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The peak memory of this program. Linux counts it per program; `ru_maxrss` includes the parent's before exec."""
    if status.is_file():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def saved_bytes(model: nn.Module, *inputs: Any, forward: Callable[..., object] | None = None) -> int:
    """Bytes of the storages that autograd saves in one forward pass, each storage once and whole.

    Parameters, buffers and the inputs are not counted: they are in memory anyway. The model runs in its current mode.
    `forward` is what is called with the inputs (default: the model), for a pass with a loss or under autocast.
    """
    tensors = (*model.parameters(), *model.buffers(), *(x for x in inputs if isinstance(x, Tensor)))
    existing = {_identity(tensor) for tensor in tensors}
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive until counted, so that no identity is reused

    def pack(tensor: Tensor) -> Tensor:
        storages.setdefault(_identity(tensor), tensor.untyped_storage())
        return tensor.detach()

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = (forward or model)(*inputs)
    count = sum(storage.nbytes() for identity, storage in storages.items() if identity not in existing)
    del output
    return count


def _identity(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
