"""How the next token is chosen from its logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepsnet.data.rng import mix
from stepsnet.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Temperature first, then the `top_k` most probable, then of those the fewest that hold `top_p` of the probability together."""

    temperature: float = 1.0
    """0: always the most probable token."""
    top_k: int = 0
    """0: all."""
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UsageError(f"temperature is {self.temperature}, but is 0 (always the most probable token) or above.")
        if self.top_k < 0:
            raise UsageError(f"top-k is {self.top_k}, but is a number of tokens, or 0 for all.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p}, but is a probability above 0 and up to 1.")

    def probabilities(self, logits: Tensor) -> Tensor:
        """What the tokens (…, V) are drawn from, in fp32."""
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        logits = logits.float() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            weakest = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < weakest, -torch.inf)
        chances = logits.softmax(-1)
        if self.top_p < 1:
            ordered, order = chances.sort(descending=True, stable=True)
            enough = ordered.cumsum(-1) - ordered >= self.top_p  # what comes before already holds top_p
            chances = torch.zeros_like(chances).scatter(-1, order, ordered.masked_fill(enough, 0.0))
            chances = chances / chances.sum(-1, keepdim=True)
        return chances


class Draw:
    """One stream of random numbers a text, from (seed, its number): what a text becomes does not depend on those beside it."""

    def __init__(self, seed: int, texts: int) -> None:
        self._streams = [torch.Generator().manual_seed(mix(seed, number)) for number in range(texts)]

    def __call__(self, chances: Tensor) -> list[int]:
        """One token of each row of (B, V): where its random number falls among the added-up chances."""
        sums = chances.double().cumsum(-1).cpu()
        numbers = torch.stack([torch.rand((), generator=stream, dtype=torch.float64) for stream in self._streams])
        # Below the whole sum, which rounding may leave a little off 1, so that a token of no chance is never reached.
        return torch.searchsorted(sums, (numbers * sums[:, -1])[:, None], right=True).squeeze(-1).tolist()
