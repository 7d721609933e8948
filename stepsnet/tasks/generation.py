"""Text generation: a batch of prompts of any lengths in, pieces of text out as they are generated.

Legend: B texts, T new tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stepsnet.data.config import mix
from stepsnet.data.text.vocabulary import Vocabulary
from stepsnet.errors import UsageError

COLDEST = 1e-6
"""The lowest temperature: logits divided by less can overflow."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Temperature, then the `top_k` most probable tokens, then the fewest of those that reach `top_p`."""

    temperature: float = 1.0
    """0: always the most probable token."""
    top_k: int = 0
    """0: all."""
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or self.temperature >= COLDEST):  # also nan
            raise UsageError(f"temperature is {self.temperature}, but must be at least {COLDEST}, or 0 for the most "
                             "probable token.")
        if self.top_k < 0:
            raise UsageError(f"top-k is {self.top_k}, but must be a number of tokens, or 0 for all.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p}, but must be above 0 and at most 1.")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities (…, V) of the tokens, in fp32."""
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        logits = logits.float() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            weakest = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < weakest, -torch.inf)
        probabilities = logits.softmax(-1)
        if self.top_p < 1:
            ordered, order = probabilities.sort(descending=True, stable=True)
            enough = ordered.cumsum(-1) - ordered >= self.top_p  # the tokens before it already have top_p
            probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered.masked_fill(enough, 0.0))
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities


class TokenDraw:
    """Draws tokens with one random stream per text, from (seed, index), so that texts of a batch are independent."""

    def __init__(self, seed: int, texts: int) -> None:
        self._streams = [torch.Generator().manual_seed(mix(seed, number)) for number in range(texts)]

    def __call__(self, probabilities: Tensor) -> list[int]:
        """One token per row of (B, V), by inverse transform sampling."""
        sums = probabilities.double().cumsum(-1).cpu()
        numbers = torch.stack([torch.rand((), generator=stream, dtype=torch.float64) for stream in self._streams])
        # Scaled by the sum, which may differ from 1 by rounding, so that tokens of probability 0 are never drawn.
        return torch.searchsorted(sums, (numbers * sums[:, -1])[:, None], right=True).squeeze(-1).tolist()


class LanguageModel(Protocol):
    """What generation needs from a model."""

    vocab_size: int
    input_size: tuple[int, ...]
    """The length of its training windows, in tokens."""

    def new_cache(self) -> Any: ...

    def forward_features(self, x: Tensor, cache: Any, mask: Tensor | None, positions: Tensor | None, /) -> Tensor: ...

    def forward_head(self, x: Tensor, /) -> Tensor: ...

    def parameters(self) -> Iterator[Tensor]: ...


@torch.inference_mode()
def generate_tokens(
    model: LanguageModel, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int = 0,
    context: int | None = None,
) -> Iterator[list[int]]:
    """Yield one new token for each prompt, without end.

    `context` is the number of tokens that the model attends to. Older ones are dropped from the cache, so that memory
    stays bounded and positions stay within the range of training. None: all tokens.
    """
    ids, mask = pad_left(prompts, model.vocab_size, context)
    device = next(iter(model.parameters())).device
    ids, mask = ids.to(device), None if mask is None else mask.to(device)
    lengths = torch.tensor([min(len(prompt), context or len(prompt)) for prompt in prompts], device=device)[:, None]
    cache, draw, positions = model.new_cache(), TokenDraw(seed, len(prompts)), None
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
    """Ids (B, T) padded on the left, and a mask that is True for text; None if all prompts have one length."""
    if not prompts:
        raise UsageError("there is no prompt to continue.")
    if context is not None and context < 1:
        raise UsageError(f"the context is {context} tokens, but must be at least 1.")
    cut = [list(prompt[-context:] if context else prompt) for prompt in prompts]
    for number, prompt in enumerate(cut):
        if not prompt:
            raise UsageError(f"prompt {number} is empty; begin it with the vocabulary's start token.")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise UsageError(f"prompt {number} has tokens outside 0 … {vocab_size - 1}: it is from another tokenizer.")
    longest = max(map(len, cut))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in cut])
    if all(len(prompt) == longest for prompt in cut):
        return ids, None
    return ids, torch.tensor([[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in cut])


class Emission(NamedTuple):
    """The next piece of one text."""

    number: int
    """Index of the prompt."""
    text: str
    finished: str | None
    """Why the text ends here, or None: "length", "stop" (a stop string), or "end" (the model ended the document)."""


@dataclass
class _Writer:
    """Turns tokens into printable pieces: whole characters, without a possible beginning of a stop string."""

    stops: Sequence[str]
    waiting: str = ""
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def write(self, piece: bytes, last: bool = False) -> tuple[str, bool]:
        """The text that can be printed now, without the stop string, and whether a stop string was found."""
        self.waiting += self.decoder.decode(piece, last)
        found = [place for stop in self.stops if (place := self.waiting.find(stop)) >= 0]
        if found:
            return self.waiting[: min(found)], True
        held = 0 if last else max((_overlap(self.waiting, stop) for stop in self.stops), default=0)
        shown, self.waiting = self.waiting[: len(self.waiting) - held], self.waiting[len(self.waiting) - held :]
        return shown, False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a beginning of the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def generate(
    model: LanguageModel, vocabulary: Vocabulary, prompts: Sequence[str], *, tokens: int,
    sampling: Sampling | None = None, stops: Sequence[str] = (), seed: int = 0, context: int | None = None,
) -> Iterator[Emission]:
    """Continue each prompt by at most `tokens` tokens: an iterator of pieces of text, each as soon as it is final.

    An empty prompt starts a document. All prompts run as one batch until the last one has finished.
    """
    vocabulary.check_fits(model.vocab_size, "the model")
    if tokens < 1:
        raise UsageError(f"tokens is {tokens}, but must be at least 1.")
    if "" in stops:
        raise UsageError("a stop string must not be empty.")
    encoded = [vocabulary.encode(prompt) or [vocabulary.start] for prompt in prompts]
    stream = generate_tokens(model, encoded, sampling or Sampling(), seed=seed, context=context)
    return _write_pieces(stream, vocabulary, [_Writer(stops) for _ in prompts], tokens)


def _write_pieces(
    stream: Iterator[list[int]], vocabulary: Vocabulary, texts: Sequence[_Writer], tokens: int
) -> Iterator[Emission]:
    writers = dict(enumerate(texts))
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
