"""Text from a language model: a batch of prompts of any lengths in, pieces of text out as they come.

Legend: B texts, T new tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stepsnet.data.text.vocabulary import Vocabulary
from stepsnet.errors import UsageError
from stepsnet.tasks.sampling import Draw, Sampling


class ForgettingCache(Protocol):
    def keep(self, tokens: int) -> None:
        """Forget all but the newest `tokens`."""


class LanguageModel(Protocol):
    """What generation asks of a model."""

    vocab_size: int
    input_size: tuple[int, ...]
    """How many tokens it was trained on at a time."""

    def new_cache(self) -> Any: ...

    def forward_features(self, x: Tensor, cache: Any, mask: Tensor | None, positions: Tensor | None, /) -> Tensor: ...

    def forward_head(self, x: Tensor, /) -> Tensor: ...

    def parameters(self) -> Iterator[Tensor]: ...


@torch.inference_mode()
def generate_tokens(
    model: LanguageModel, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int = 0, context: int | None = None
) -> Iterator[list[int]]:
    """Endlessly, one new token for each prompt. The caller stops when it has enough.

    `context` is how many tokens the model looks back: older ones are forgotten, so that a text can grow without end and no two
    tokens are further apart than the model has seen in training. None: it looks back at everything.
    """
    ids, mask = pad_left(prompts, model.vocab_size, context)
    device = next(iter(model.parameters())).device
    ids, mask = ids.to(device), None if mask is None else mask.to(device)
    lengths = torch.tensor([min(len(prompt), context or len(prompt)) for prompt in prompts], device=device)[:, None]
    cache, draw, positions = model.new_cache(), Draw(seed, len(prompts)), None
    while True:
        logits = model.forward_head(model.forward_features(ids, cache, mask, positions)[:, -1])
        tokens = draw(sampling.probabilities(logits))
        yield tokens
        ids, positions = torch.tensor(tokens, device=device)[:, None], lengths
        lengths = lengths + 1
        if mask is not None:
            mask = torch.cat((mask, mask.new_ones(len(prompts), 1)), dim=1)
        if context is not None:
            cache.keep(context - 1)
            mask = None if mask is None else mask[:, -context:]


def pad_left(prompts: Sequence[Sequence[int]], vocab_size: int, context: int | None) -> tuple[Tensor, Tensor | None]:
    """Ids (B, T) with short prompts behind padding, and where they are text; no mask where all are equally long."""
    if not prompts:
        raise UsageError("there is no prompt to go on from.")
    if context is not None and context < 1:
        raise UsageError(f"the context is {context} tokens, but the model looks back at one at least.")
    cut = [list(prompt[-context:] if context else prompt) for prompt in prompts]
    for number, prompt in enumerate(cut):
        if not prompt:
            raise UsageError(f"prompt {number} is empty; begin it with the vocabulary's start token.")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise UsageError(f"prompt {number} holds tokens outside the model's 0 … {vocab_size - 1}; they come from another tokenizer.")
    longest = max(map(len, cut))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in cut])
    if all(len(prompt) == longest for prompt in cut):
        return ids, None
    return ids, torch.tensor([[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in cut])


class Emission(NamedTuple):
    """A further piece of one text."""

    number: int
    """Which text."""
    text: str
    finished: str | None
    """Why the text ends here, if it does: "length", "stop" (one of the stop strings), or "end" (the model ended the document)."""


@dataclass
class _Writer:
    """Tokens of one text to pieces that can be shown: whole characters, and nothing that may yet turn out to be a stop string."""

    stops: Sequence[str]
    waiting: str = ""
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def write(self, piece: bytes, last: bool = False) -> tuple[str, bool]:
        """What can be shown now, and whether a stop string was met; the stop string itself is not shown."""
        self.waiting += self.decoder.decode(piece, last)
        found = [place for stop in self.stops if (place := self.waiting.find(stop)) >= 0]
        if found:
            return self.waiting[: min(found)], True
        held = 0 if last else max((_overlap(self.waiting, stop) for stop in self.stops), default=0)
        shown, self.waiting = self.waiting[: len(self.waiting) - held], self.waiting[len(self.waiting) - held :]
        return shown, False


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are a beginning of the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompts: Sequence[str],
    *,
    tokens: int,
    sampling: Sampling | None = None,
    stops: Sequence[str] = (),
    seed: int = 0,
    context: int | None = None,
) -> Iterator[Emission]:
    """Go on from each prompt by at most `tokens` tokens, and emit every piece of text as soon as it is certain.

    An empty prompt begins a document. All prompts run as one batch until the last of them has finished.
    """
    vocabulary.check_fits(model.vocab_size, "the model")
    if tokens < 1:
        raise UsageError(f"{tokens} tokens cannot be generated; ask for one at least.")
    if "" in stops:
        raise UsageError("an empty stop string would stop everything before it begins.")
    encoded = [vocabulary.encode(prompt) or [vocabulary.start] for prompt in prompts]
    writers = {number: _Writer(stops) for number in range(len(prompts))}
    stream = generate_tokens(model, encoded, sampling or Sampling(), seed=seed, context=context)
    for count, chosen in enumerate(stream, start=1):
        for number, writer in list(writers.items()):
            ended = chosen[number] == vocabulary.separator
            over = ended or count == tokens
            text, stopped = writer.write(vocabulary.pieces[chosen[number]], last=over)
            finished = "stop" if stopped else "end" if ended else "length" if over else None
            if finished:
                del writers[number]
            if text or finished:
                yield Emission(number, text, finished)
        if not writers:
            return
