from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import DataConfig
from stepsnet.data.text import Text, TextStore
from stepsnet.tasks.base import Task
from stepsnet.tasks.language import Language


def make(train: bytes = b"abcdefghijklmnop", valid: bytes = b"ABCDEFGHIJ", seed: int = 0) -> Language:
    store, held_out = (TextStore([np.frombuffer(part, dtype=np.uint8)]) for part in (train, valid))
    return Language(Text("toy", store, held_out), DataConfig(kind="text", seq_len=4), seed=seed, smoothing=0.0)


class Table(nn.Module):
    """The next byte's logits from the byte alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


def test_it_is_a_task() -> None:
    task: Task = make()
    assert (task.name, task.unit, task.headline, task.higher_is_better) == ("language", "tokens", "loss", False)
    assert task.model_kwargs() == {"vocab_size": 256, "seq_len": 4}
    assert task.describe()["valid_bytes"] == 10


def test_targets_are_the_next_bytes() -> None:
    task = make()
    batch = task.collate([task.valid[0, 0], None, task.valid[0, 1]])
    assert bytes(batch["tokens"][0].tolist()) == b"ABCD"
    assert bytes(batch["target"][0].tolist()) == b"BCDE"
    assert bytes(batch["tokens"][1].tolist()) == b"EFGH"
    assert batch["ids"].tolist() == [0, 1]
    assert task.units(batch) == 8
    assert task.prepare(batch, 3) is batch


def test_the_loss_is_the_mean_over_bytes() -> None:
    task, model = make(), Table()
    batch = task.collate([task.train[0, 0], task.train[0, 1]])
    expected = F.cross_entropy(model(batch["tokens"]).view(-1, 256), batch["target"].view(-1))
    assert torch.allclose(task.loss(model, batch), expected)


def test_evaluation_counts_each_byte_once_whatever_the_batches() -> None:
    task, model = make(), Table()
    totals: dict[str, float] = {}
    for indices in ((0,), (1, 2)):
        for key, value in task.evaluate(model, task.collate([task.valid[0, index] for index in indices])).items():
            assert value.dtype == torch.float64
            totals[key] = totals.get(key, 0.0) + value.item()
    everything = torch.tensor(list(b"ABCDEFGHIJ"))
    expected = F.cross_entropy(model(everything[:-1]), everything[1:]).item()
    assert totals["count"] == 9
    metrics = task.summary(totals)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["bits_per_byte"] == pytest.approx(expected / math.log(2), rel=1e-5)
    assert metrics["perplexity_per_token"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_a_diverged_model_still_has_a_summary() -> None:
    assert make().summary({"loss_sum": 5000.0, "count": 2.0, "bytes": 2.0, "words": 1.0})["perplexity_per_token"] == math.inf


def test_a_task_can_be_sent_to_a_loader_worker() -> None:
    task = make()
    copy = pickle.loads(pickle.dumps(task))
    assert torch.equal(copy.collate([copy.train[2, 1]])["tokens"], task.collate([task.train[2, 1]])["tokens"])
