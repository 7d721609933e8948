from __future__ import annotations

import math

import pytest
import torch

from stepsnet.errors import UsageError
from stepsnet.tasks.generation import Sampling, TokenDraw

LOGITS = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).log()


def chances(**settings: float) -> list[float]:
    return Sampling(**settings).probabilities(LOGITS)[0].tolist()  # type: ignore[arg-type]


def test_plain_sampling_is_the_softmax() -> None:
    assert chances() == pytest.approx([0.5, 0.2, 0.15, 0.1, 0.05])


def test_temperature_sharpens_and_zero_is_greedy() -> None:
    assert chances(temperature=0.5)[0] == pytest.approx(0.25 / (0.25 + 0.04 + 0.0225 + 0.01 + 0.0025))
    assert chances(temperature=0) == [1, 0, 0, 0, 0]


def test_top_k_keeps_the_k_most_probable() -> None:
    assert chances(top_k=2) == pytest.approx([5 / 7, 2 / 7, 0, 0, 0])
    assert chances(top_k=99) == chances()


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.51, 2), (0.7, 2), (0.84, 3), (1.0, 5), (1e-9, 1)])
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: int) -> None:
    found = chances(top_p=top_p)
    assert sum(chance > 0 for chance in found) == kept
    assert math.isclose(sum(found), 1, rel_tol=1e-6)


def test_top_k_comes_before_top_p() -> None:
    # Of the two most probable tokens, the first already has 5/7.
    assert chances(top_k=2, top_p=0.7) == [1, 0, 0, 0, 0]


def test_draws_follow_the_probabilities() -> None:
    draw = TokenDraw(3, 1)
    counts = [0] * 5
    for _ in range(4000):
        counts[draw(LOGITS.exp())[0]] += 1
    assert [count / 4000 for count in counts] == pytest.approx([0.5, 0.2, 0.15, 0.1, 0.05], abs=0.03)


def test_tokens_of_probability_zero_are_never_drawn() -> None:
    draw = TokenDraw(0, 1)
    assert {draw(torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]]))[0] for _ in range(300)} == {1, 3}


def test_a_text_draws_the_same_tokens_alone_and_in_a_batch() -> None:
    alone, together = TokenDraw(5, 1), TokenDraw(5, 3)
    rows = LOGITS.exp().expand(3, -1)
    assert [alone(rows[:1])[0] for _ in range(20)] == [together(rows)[0] for _ in range(20)]


def test_another_seed_draws_other_tokens() -> None:
    rows = torch.full((1, 1000), 1e-3)
    assert TokenDraw(1, 1)(rows) != TokenDraw(2, 1)(rows)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1e-40}, "temperature is 1e-40, but must be at least 1e-06, or 0 for the most probable token"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_p": 0}, "top-p is 0"),
        ({"top_p": 1.5}, r"top-p is 1\.5"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Sampling(**settings)  # type: ignore[arg-type]
