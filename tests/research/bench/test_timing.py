"""Timings made up so that their quartiles are known, and turns whose order is."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch

from stepsnet.research.bench.timing import Quartiles, interleave, speed_ratios, threads, turns


def test_quartiles_of_known_numbers() -> None:
    assert Quartiles.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Quartiles(median=3.0, lower=2.0, upper=4.0)


def test_one_number_is_its_own_spread() -> None:
    assert Quartiles.of([0.25]) == Quartiles(0.25, 0.25, 0.25)


def test_a_ratio_is_of_the_same_round() -> None:
    slow_second_round = speed_ratios([2.0, 20.0, 2.0], [1.0, 10.0, 1.0])
    assert slow_second_round == [2.0, 2.0, 2.0]


def test_every_round_has_all_and_begins_one_further_on() -> None:
    assert turns(3, 4) == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_passes_run_in_turns_and_the_warm_up_is_not_kept() -> None:
    ran: list[str] = []
    ticks: list[None] = []
    clock = itertools.count(0.0, 1.0)  # every look at the clock is a second later
    seconds = interleave(
        [lambda: ran.append("a"), lambda: ran.append("b")],
        rounds=3,
        warm_up=1,
        clock=lambda: next(clock),
        tick=lambda: ticks.append(None),
    )
    assert "".join(ran) == "abbaabba"
    assert seconds == [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert len(ticks) == 8


def test_a_pass_is_charged_its_own_time() -> None:
    now = [0.0]

    def take(seconds: float) -> None:
        now[0] += seconds

    seconds = interleave([lambda: take(2.0), lambda: take(5.0)], rounds=2, clock=lambda: now[0])
    assert seconds == [[2.0, 2.0], [5.0, 5.0]]


def test_garbage_is_collected_again_afterwards() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        interleave([fail], rounds=1)
    assert gc.isenabled()


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
