from __future__ import annotations

import torch

from stepsnet.data.config import mix, torch_seeded


def test_neighbouring_keys_give_uncorrelated_numbers() -> None:
    numbers = [mix(seed, epoch, index) for seed in range(4) for epoch in range(4) for index in range(64)]
    assert len(set(numbers)) == len(numbers)
    low_bits = [number % 2 for number in numbers]
    assert 0.4 < sum(low_bits) / len(low_bits) < 0.6


def test_the_order_of_the_key_matters() -> None:
    assert mix(1, 2) != mix(2, 1)


def test_numbers_are_the_same_in_every_version() -> None:
    assert mix(0, 1, 2) == 8825289091277911490  # a resumed run of an older version draws the same


def test_a_seeded_block_restores_the_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch_seeded(1):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with torch_seeded(1):
        assert torch.equal(torch.rand(3), inside)
