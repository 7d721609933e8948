"""What the training loop asks of a task: samples in, a loss and countable metrics out."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

Batch = dict[str, Tensor]
"""Always has "ids", int64 (B,). Classification: "image" (B, C, H, W) float and "target" (B,) int64 or (B, K) soft.
Language: "tokens" and "target", both (B, T) int64. Dense tasks say in their docstrings what else theirs have; a batch can always be
cut along its first dimension."""

SampleKey = tuple[int, int]
"""(epoch, index). All randomness of a sample derives from the run's seed and this key, nothing else."""


class MapDataset(Protocol):
    """Samples by key. It is picklable, so that loader workers can hold it."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: SampleKey) -> Any:
        """The sample, or None when it was unreadable and is skipped."""

    @property
    def skipped(self) -> int:
        """How many samples were unreadable so far, over all loader workers of this process."""


class Task(Protocol):
    """Everything the loop needs to know about what is being learned."""

    name: str
    unit: str
    """What a rate counts: "images" or "tokens"."""
    headline: str
    """The validation metric shown first."""
    higher_is_better: bool
    train: MapDataset
    valid: MapDataset

    def model_kwargs(self) -> dict[str, Any]:
        """What the data dictates to the model: num_classes, in_chans and img_size, or vocab_size and seq_len."""

    def collate(self, samples: list[Any]) -> Batch:
        """One batch of the samples that are not None. If none is left, the batch has zero rows, which `loss` and `evaluate` accept."""

    def prepare(self, batch: Batch, step: int) -> Batch:
        """Augmentation of whole training batches; deterministic given the seed, the step and the batch's ids."""

    def units(self, batch: Batch) -> int:
        """Images or tokens in the batch."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over the batch, differentiable."""

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Sums and counts over the batch as scalar float64 tensors, to be added over batches and ranks."""

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        """Metrics from the added-up totals."""

    def describe(self) -> dict[str, Any]:
        """Sizes and facts for `--dry-run` and config.json."""


@runtime_checkable
class DenseTask(Task, Protocol):
    """A task whose model is not one of the zoo as it is, but a network around it as a backbone."""

    def network(self, backbone: nn.Module, *, frozen_norm: bool) -> nn.Module:
        """The network around `backbone`, which returns maps; `frozen_norm` keeps the backbone's batch norms from learning statistics."""

    def network_macs(self, network: nn.Module) -> int:
        """Multiply-accumulates for one picture of the task's size."""

    def facts(self) -> dict[str, Any]:
        """What a prediction needs to know besides the weights, ready for JSON: names of classes above all. Kept in the weights' file."""


@runtime_checkable
class WholeSetTask(Task, Protocol):
    """A task whose metrics need all predictions at once, and cannot be added up batch by batch."""

    def predictions(self, model: nn.Module, batch: Batch) -> list[Any]:
        """What the model says to a batch, in whatever form `score` wants; picklable."""

    def score(self, predictions: list[Any]) -> dict[str, float]:
        """Metrics from the predictions of all batches and processes."""
