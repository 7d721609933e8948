from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepsnet.data.config import DataConfig
from stepsnet.data.text.prepare import train_bpe
from stepsnet.data.text.vocabulary import BpeVocabulary, ByteVocabulary, Vocabulary
from stepsnet.data.text.windows import Text, TextStore
from stepsnet.tasks.base import Task
from stepsnet.tasks.language import Language, TokenSizes


def make(train: bytes = b"abcdefghijklmnop", valid: bytes = b"ABCDEFGHIJ", seed: int = 0) -> Language:
    store, held_out = (TextStore([np.frombuffer(part, dtype=np.uint8)]) for part in (train, valid))
    return Language(Text("toy", store, held_out), DataConfig(kind="text", seq_len=4), seed=seed, smoothing=0.0)


class Table(nn.Module):
    """Logits of the next byte from the current byte only."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


def test_it_implements_the_task_protocol() -> None:
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


def test_evaluation_counts_each_byte_once_for_every_batch_size() -> None:
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


def test_a_diverged_model_has_a_summary() -> None:
    assert (
        make().summary({"loss_sum": 5000.0, "count": 2.0, "bytes": 2.0, "words": 1.0})["perplexity_per_token"]
        == math.inf
    )


def test_a_task_can_be_pickled_for_loader_workers() -> None:
    task = make()
    copy = pickle.loads(pickle.dumps(task))
    assert torch.equal(copy.collate([copy.train[2, 1]])["tokens"], task.collate([task.train[2, 1]])["tokens"])


WORDS = b" one two\nthree  four, five\tsix seven eight nine ten " * 4


def totals_of(task: Language, model: nn.Module) -> dict[str, float]:
    totals: dict[str, float] = {}
    for index in range(len(task.valid)):
        for key, value in task.evaluate(model, task.collate([task.valid[0, index]])).items():
            totals[key] = totals.get(key, 0.0) + value.item()
    return totals


def with_vocabulary(vocabulary: Vocabulary, **data: int) -> Language:
    tokens = np.array(vocabulary.encode(WORDS.decode()), dtype=np.uint16)
    text = Text("toy", TextStore([tokens]), TextStore([tokens]), vocabulary)
    return Language(text, DataConfig(kind="text", seq_len=6, **data), seed=0, smoothing=0.0)  # type: ignore[arg-type]


VOCABULARIES = [ByteVocabulary(), BpeVocabulary(train_bpe([WORDS.decode() * 9], 290), "test")]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["bytes", "bpe"])
@pytest.mark.parametrize("stride", [0, 1, 4])
def test_bytes_and_words_do_not_depend_on_tokens_and_windows(vocabulary: Vocabulary, stride: int) -> None:
    task = with_vocabulary(vocabulary, stride=stride)
    totals = totals_of(task, Uniform(len(vocabulary.pieces)))
    first = len(vocabulary.pieces[vocabulary.encode(WORDS.decode())[0]])  # the first token is not a target
    assert totals["bytes"] == len(WORDS) - first
    assert totals["words"] == len(WORDS[first:].split())


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["bytes", "bpe"])
def test_perplexity_per_token_differs_from_perplexity_per_word(vocabulary: Vocabulary) -> None:
    task, V = with_vocabulary(vocabulary), len(vocabulary.pieces)
    totals = totals_of(task, Uniform(V))
    metrics = task.summary(totals)
    assert metrics["perplexity_per_token"] == pytest.approx(V, rel=1e-5)
    assert metrics["perplexity_per_word"] == pytest.approx(V ** (totals["count"] / totals["words"]), rel=1e-4)
    assert metrics["bits_per_byte"] == pytest.approx(math.log2(V) * totals["count"] / totals["bytes"], rel=1e-5)


def test_a_separator_ends_a_word_and_has_no_bytes() -> None:
    sizes = TokenSizes([b"a", b"b ", b""])
    length, words = sizes.count(torch.tensor([[0, 2, 0, 1]]), torch.tensor([[2, 0, 1, 0]]))
    assert (length.item(), words.item()) == (
        1 + 2 + 1,
        2,
    )  # a|SEP| a b_|a: "a" after the separator, and "a" after the space


class Uniform(nn.Module):
    """Every token is equally probable."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(*x.shape, self.tokens)
