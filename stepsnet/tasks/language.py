"""Bytes in, the next byte out.

Legend: B batch, T tokens of a window.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import DataConfig
from stepsnet.data.text import IGNORED, Text, TextSample, TextWindows
from stepsnet.tasks.base import Batch, MapDataset

VOCABULARY = 256


class Language:
    """The next byte from those before it in the window: cross entropy, bits per byte, perplexity."""

    name = "language"
    unit = "tokens"
    headline = "loss"
    higher_is_better = False

    def __init__(self, text: Text, data: DataConfig, *, seed: int, smoothing: float) -> None:
        self.text_name, self.seq_len, self.smoothing = text.name, data.seq_len, smoothing
        self.train_bytes, self.valid_bytes = len(text.train), len(text.valid)
        self.train: MapDataset = TextWindows(text.train, data.seq_len, seed)
        self.valid: MapDataset = TextWindows(text.valid, data.seq_len, None)

    def model_kwargs(self) -> dict[str, Any]:
        return {"vocab_size": VOCABULARY, "seq_len": self.seq_len}

    def collate(self, samples: list[TextSample | None]) -> Batch:
        kept = [sample for sample in samples if sample is not None]
        windows = torch.from_numpy(np.stack([sample.window for sample in kept]))
        # Behind the end of a text the input is any valid token, since nothing after it counts.
        return {
            "tokens": windows[:, :-1].clamp(min=0),
            "target": windows[:, 1:].contiguous(),
            "ids": torch.tensor([sample.sample_id for sample in kept], dtype=torch.int64),
        }

    def prepare(self, batch: Batch, step: int) -> Batch:  # noqa: ARG002  # text is not changed, at no step
        return batch

    def units(self, batch: Batch) -> int:
        return batch["tokens"].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["tokens"]).float()
        return F.cross_entropy(logits.flatten(0, 1), batch["target"].flatten(), ignore_index=IGNORED, label_smoothing=self.smoothing)

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = model(batch["tokens"]).float()
        target = batch["target"]
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")
        return {"loss_sum": loss.double(), "count": (target != IGNORED).sum().double()}

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        loss = totals["loss_sum"] / max(totals["count"], 1.0)
        # A diverged model's perplexity has no number, but its loss is still worth reporting.
        return {"loss": loss, "bits_per_byte": loss / math.log(2), "perplexity": math.exp(loss) if loss < 700 else math.inf}

    def describe(self) -> dict[str, Any]:
        facts = {"data": self.text_name, "train_bytes": self.train_bytes, "valid_bytes": self.valid_bytes}
        return {**facts, "seq_len": self.seq_len, "train_windows": len(self.train), "valid_windows": len(self.valid)}
