"""Language modelling: predict the next token.

Legend: B batch, T tokens of a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import DataConfig
from stepsnet.data.text.tokens import TOKENIZER
from stepsnet.data.text.trained import vocabulary_of
from stepsnet.data.text.vocabulary import BpeVocabulary
from stepsnet.data.text.windows import IGNORED, Text, TextSample, TrainWindows, ValidWindows
from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.tasks.base import Batch, MapDataset


class Language:
    """Cross entropy of the next token, bits per byte, and perplexity.

    Perplexity per token is comparable for one vocabulary only. Bits per byte and perplexity per word (words are
    separated by white space) are comparable between vocabularies, on the same text.
    """

    name = "language"
    unit = "tokens"
    headline = "loss"
    higher_is_better = False

    def __init__(self, text: Text, data: DataConfig, *, seed: int, smoothing: float) -> None:
        self.text_name, self.seq_len, self.smoothing = text.name, data.seq_len, smoothing
        self.vocabulary = text.vocabulary
        self.sizes = {
            f"{part}_{text.vocabulary.unit}": len(store)
            for part, store in (("train", text.train), ("valid", text.valid))
        }
        self.train: MapDataset = TrainWindows(text.train, data.seq_len, seed)
        self.valid: MapDataset = ValidWindows(text.valid, data.seq_len, data.stride, data.valid_windows)
        self.token_sizes = TokenSizes(text.vocabulary.pieces)

    def model_kwargs(self) -> dict[str, Any]:
        return {"vocab_size": len(self.vocabulary.pieces), "seq_len": self.seq_len}

    def check_run(self, folder: Path) -> None:
        if vocabulary_of(folder).identity != self.vocabulary.identity:
            raise UsageError(f"{folder} was started with a different tokenizer from that of data.root; "
                             "give the data that it was started with.")

    def write_files(self, folder: Path) -> None:
        """Copy the tokenizer for `stepsnet generate`."""
        if isinstance(self.vocabulary, BpeVocabulary):
            replace_file(folder / TOKENIZER, self.vocabulary.content.encode())

    def collate(self, samples: list[TextSample | None]) -> Batch:
        kept = [sample for sample in samples if sample is not None]
        windows = torch.from_numpy(np.stack([sample.window for sample in kept]))
        target = windows[:, 1:].clone()
        for row, sample in enumerate(kept):
            target[row, : sample.context] = IGNORED
        return {
            "tokens": windows[:, :-1].clamp(min=0),  # any valid token will do after the end of the text
            "target": target,
            "ids": torch.tensor([sample.sample_id for sample in kept], dtype=torch.int64),
        }

    def prepare(self, batch: Batch, step: int) -> Batch:  # noqa: ARG002  # nothing to augment
        return batch

    def units(self, batch: Batch) -> int:
        return batch["tokens"].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["tokens"]).float()
        return F.cross_entropy(
            logits.flatten(0, 1), batch["target"].flatten(), ignore_index=IGNORED, label_smoothing=self.smoothing
        )

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = model(batch["tokens"]).float()
        target = batch["target"]
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")
        length, words = self.token_sizes.count(batch["tokens"], target)
        return {"loss_sum": loss.double(), "count": (target != IGNORED).sum().double(), "bytes": length, "words": words}

    def summary(self, totals: dict[str, float]) -> dict[str, float]:
        loss = totals["loss_sum"]
        per_token, per_byte, per_word = (loss / max(totals[unit], 1.0) for unit in ("count", "bytes", "words"))
        return {
            "loss": per_token,
            "bits_per_byte": per_byte / math.log(2),
            "perplexity_per_token": _perplexity(per_token),
            "perplexity_per_word": _perplexity(per_word),
        }

    def describe(self) -> dict[str, Any]:
        facts = {"data": self.text_name, "vocabulary": len(self.vocabulary.pieces), **self.sizes}
        return {**facts, "seq_len": self.seq_len, "train_windows": len(self.train), "valid_windows": len(self.valid)}


class TokenSizes:
    """Bytes and words of tokens. A word counts for the token with its first byte, which follows white space."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.length = torch.tensor([len(piece) for piece in pieces])
        # The separator of documents, which has no text, ends a word like white space.
        self.ends_word = torch.tensor([not piece or piece[-1:].isspace() for piece in pieces])
        self.begins_word = torch.tensor([bool(piece) and not piece[:1].isspace() for piece in pieces])
        self.words_inside = torch.tensor([len(piece.split()) for piece in pieces]) - self.begins_word.long()

    def count(self, tokens: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Total bytes and words of the targets (B, T) that follow `tokens`. Ignored targets do not count."""
        counted = (target != IGNORED).cpu()
        before, after = tokens.cpu()[counted], target.cpu()[counted]
        words = self.words_inside[after] + (self.ends_word[before] & self.begins_word[after])
        return self.length[after].sum().double().to(target.device), words.sum().double().to(target.device)


def _perplexity(loss: float) -> float:
    """exp(loss), or infinity where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf
