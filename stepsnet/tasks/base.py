"""The interface between the training loop and a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

Batch = dict[str, Tensor]
"""Always has "ids", int64 (B,). Classification: "image" (B, C, H, W) float and "target" (B,) int64 or (B, K) soft.
Language: "tokens" and "target", both (B, T) int64. Dense tasks list their keys in their docstrings. Every tensor can be
split along its first dimension."""

SampleKey = tuple[int, int]
"""(epoch, index). All randomness of a sample depends only on the run's seed and this key."""


class MapDataset(Protocol):
    """Samples by key. Must be picklable for loader workers."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: SampleKey) -> Any:
        """The sample, or None if it is unreadable and skipped."""

    @property
    def skipped(self) -> int:
        """Number of unreadable samples so far, over all loader workers of this process."""


class Task(Protocol):
    """What the training loop needs from a task."""

    name: str
    unit: str
    """What throughput counts: "images" or "tokens"."""
    headline: str
    """The validation metric shown first."""
    higher_is_better: bool
    train: MapDataset
    valid: MapDataset

    def model_kwargs(self) -> dict[str, Any]:
        """Model options that follow from the data: num_classes, in_chans and img_size, or vocab_size and seq_len."""

    def collate(self, samples: list[Any]) -> Batch:
        """One batch of the samples that are not None. It may have zero rows, which `loss` and `evaluate` accept."""

    def prepare(self, batch: Batch, step: int) -> Batch:
        """Augment a whole training batch; deterministic given seed, step and the batch's ids."""

    def units(self, batch: Batch) -> int:
        """Images or tokens in the batch."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over the batch, differentiable."""

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Sums and counts over the batch as float64 scalars, to be added over batches and ranks."""

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        """Metrics from the totals."""

    def describe(self) -> dict[str, Any]:
        """Sizes of the data for `--dry-run` and config.json."""


@runtime_checkable
class DenseTask(Task, Protocol):
    """A task whose model is a network around a backbone of the zoo."""

    def network(self, backbone: nn.Module, *, frozen_norm: bool) -> nn.Module:
        """The network around `backbone`, which returns maps. `frozen_norm` freezes the backbone's batch statistics."""

    def network_macs(self, network: nn.Module) -> int:
        """MACs for one image of the task's size."""

    def facts(self) -> dict[str, Any]:
        """What predictions need besides the weights, such as class names; JSON values, stored in the weights file."""


@runtime_checkable
class WholeSetTask(Task, Protocol):
    """A task whose metrics need all predictions at once instead of sums over batches."""

    def predictions(self, model: nn.Module, batch: Batch) -> list[Any]:
        """The model's predictions for a batch, in the form that `score` takes; picklable."""

    def score(self, predictions: list[Any]) -> dict[str, float]:
        """Metrics from the predictions of all batches and processes."""


@runtime_checkable
class TaskWithFiles(Task, Protocol):
    """A task with files in the run folder, so that the folder is enough for predictions."""

    def check_run(self, folder: Path) -> None:
        """Refuse data that do not fit the run in `folder`: of other classes, or with another tokenizer."""

    def write_files(self, folder: Path) -> None:
        """Write the files when a run starts or continues."""


def spread_samples(task: Task, count: int) -> Batch:
    """One batch of `count` validation samples, evenly spread; all of them if there are fewer."""
    stride = max(1, len(task.valid) // count)
    chosen = range(0, stride * min(count, len(task.valid)), stride)
    return task.collate([task.valid[0, index] for index in chosen])
