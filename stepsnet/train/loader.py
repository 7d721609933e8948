"""Batches: the same global batches for any number of processes and workers, from any step on."""

from __future__ import annotations

import atexit
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader

from stepsnet.data.config import mix
from stepsnet.errors import UsageError
from stepsnet.tasks.base import Batch, MapDataset, SampleKey, Task
from stepsnet.train.distributed import Processes

_ORDER = 0x0DE5  # keeps the order of samples apart from other uses of the seed


class BatchKeys:
    """The sample keys of this process's share of every batch, endlessly: a new order each epoch, whole batches only.

    Batch k depends on (seed, k) only. So a run that continues after k steps starts with batch k: `keys.start = k`.
    """

    def __init__(self, samples: int, batch_size: int, seed: int, processes: Processes) -> None:
        if batch_size > samples:
            raise UsageError(f"batch_size={batch_size} is above {samples}, the number of training samples.")
        if batch_size % processes.world:
            raise UsageError(f"batch_size={batch_size} is not divisible by the number of processes, {processes.world}.")
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        share = batch_size // processes.world
        self._mine = slice(processes.rank * share, (processes.rank + 1) * share)
        self.start = 0

    @property
    def batches_per_epoch(self) -> int:
        return self.samples // self.batch_size

    def __iter__(self) -> Iterator[list[SampleKey]]:
        ordered_epoch, order = -1, torch.empty(0, dtype=torch.int64)
        for batch in count(self.start):
            epoch, number = divmod(batch, self.batches_per_epoch)
            if epoch != ordered_epoch:
                generator = torch.Generator().manual_seed(mix(self.seed, _ORDER, epoch))
                ordered_epoch, order = epoch, torch.randperm(self.samples, generator=generator)
            indices = order[number * self.batch_size : (number + 1) * self.batch_size][self._mine]
            yield [(epoch, index) for index in indices.tolist()]


class TrainingBatches:
    """The training batches of this process, from `keys.start` on."""

    def __init__(self, task: Task, keys: BatchKeys, workers: int) -> None:
        self._loader = _make_loader(task.train, task, keys, workers)
        self._iterator: Iterator[Batch] | None = None
        self._first: list[Batch] = []

    def start(self) -> None:
        """Start the workers and wait for the first batch. The workers go on loading."""
        self._iterator = iter(self._loader)
        self._first = [next(self)]

    def __next__(self) -> Batch:
        assert self._iterator is not None, "start() comes first"
        with _one_sentence():
            return self._first.pop() if self._first else next(self._iterator)

    def close(self) -> None:
        """Stop the workers."""
        _stop_workers(self._iterator)
        self._iterator = None


class ValidationBatches:
    """The validation samples, each once over all processes, in the same number of batches on each process.

    A process without a sample for the last batch gets a placeholder that does not count, because the forward pass of a
    sharded model needs all processes.
    """

    def __init__(self, task: Task, batch_size: int, workers: int, processes: Processes) -> None:
        self.samples = total = len(task.valid)
        share = max(1, batch_size // processes.world)
        starts = range(0, total, share * processes.world)
        mine = [range(total)[start + processes.rank * share :][:share] for start in starts]
        keys = [[(0, index) for index in indices] or [(0, 0)] for indices in mine]
        self.counts = [len(indices) > 0 for indices in mine]
        self._loader = _make_loader(task.valid, task, keys, workers)

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[tuple[Batch, bool]]:
        """Batches, each with whether it counts."""
        iterator = iter(self._loader)
        try:
            for counts in self.counts:
                with _one_sentence():
                    batch = next(iterator)
                yield batch, counts
        finally:
            _stop_workers(iterator)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Without the traceback that a worker puts around its error."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).splitlines()[-1].removeprefix("stepsnet.errors.UsageError: ")) from error


def _make_loader(dataset: MapDataset, task: Task, keys: Any, workers: int) -> DataLoader[Any]:
    if workers:
        _kill_workers_at_exit()
    return DataLoader(
        dataset,  # type: ignore[arg-type]  # it has what torch's Dataset has
        batch_sampler=keys,
        collate_fn=task.collate,
        num_workers=workers,
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),  # otherwise creating an iterator would draw from dropout's generator
        pin_memory=torch.cuda.is_available(),
    )


def _ignore_signals(_worker: int) -> None:
    """Workers ignore Ctrl-C and SIGTERM, which reach all processes: the trainer needs them for its current step.
    They stop when the trainer closes the loader, or within seconds of its death.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _stop_workers(iterator: Any) -> None:
    """Stop the workers of an iterator now, even if an exception still refers to it or a worker hangs in a read."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        for worker in iterator._workers:
            worker.kill()


@cache
def _kill_workers_at_exit() -> None:
    """At exit, Python sends SIGTERM to daemons and waits for them: forever, since the workers ignore it."""

    def kill() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report a failure
        for child in multiprocessing.active_children():
            if child.daemon:
                child.kill()

    atexit.register(kill)
