"""The notes and labels of figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepsnet.report.chart import BarChart, LineChart
from stepsnet.research.studies.ablations import PATHS, draw_drops, draw_paths
from stepsnet.research.studies.images import FIGURE1_MINI
from stepsnet.research.studies.pages import (
    Charts,
    differences,
    gamma_over_depth,
    gaps_over_training,
    loss_over_blocks,
    losses_over_training,
)
from stepsnet.research.studies.results import Results
from stepsnet.research.studies.study import Cell
from tests.research.studies import toy


def note(charts: Charts) -> str:
    ((_, chart),) = charts
    return chart.note


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({"a": [1.0, 1.1, 1.2], "b": [1.0, 1.1, 1.2]}, "over 3 seeds"),
        ({"a": [1.0, 1.1, 1.2], "b": [1.0, None, 1.2]}, "over 2 to 3 seeds"),
        ({"a": [1.0, None, None], "b": [1.0, None, None]}, "over one seed"),
    ],
)
def test_the_note_counts_the_seeds_that_finished(losses: dict[str, list[float | None]], words: str) -> None:
    found = toy.results(losses)
    assert note(loss_over_blocks(found, toy.setting())).endswith(words)


def test_losses_after_different_numbers_of_steps_are_not_joined() -> None:
    arms = [replace(toy.arm(iters=iters), blocks=blocks) for blocks, iters in ((12, 9), (24, 9), (48, 5))]
    ((_, chart),) = loss_over_blocks(toy.results({"plain": [1.0]}, arms), toy.setting())
    assert isinstance(chart, LineChart)
    assert list(chart.lines[0].y) == [1.0, 1.0, None, 1.0]


def test_every_network_of_figure1_mini_has_a_colour_of_its_own() -> None:
    for size in FIGURE1_MINI.sizes.values():
        colors = {arm.label: arm.color for arm in size.arms}
        assert len(set(colors.values())) == len(colors) == 4


def test_the_note_of_gamma_counts_the_seeds_that_are_drawn(tmp_path: Path) -> None:
    arm = toy.arm()
    toy.pretend(tmp_path, Cell(arm, 0), 1.0)
    found = replace(toy.results({"plain": [1.0, None]}, [arm]), pool=tmp_path)
    assert note(gamma_over_depth(found, arm.setting, [arm], 0)).endswith("mean over one seed")


def test_the_notes_of_probes_use_the_singular_for_one_seed() -> None:
    masked = {"loss": {"sizes": [0, 8], "slow": [1.0, 2.0], "fast": [1.0, 1.4]}}
    dropped = {"loss": {"steps": ["none", "step 1"], "dropped": [0, 4], "share": [0, 0.1], "metric": [1.0, 2.0]}}
    cell = PATHS.sizes["quick"].cells()[0]
    found = Results(PATHS.sizes["quick"], {cell.id: toy.made_up(cell, 1.0, paths=masked, drops=dropped)})
    assert "mean over one seed;" in note(draw_paths(found))
    assert "mean over one seed;" in note(draw_drops(found))


def test_bars_name_the_blocks_only_where_they_differ() -> None:
    alike = toy.results({"a": [1.0, 1.1], "b": [0.9, 0.8]})
    ((_, chart),) = differences(alike, toy.setting(), "toy-a-2", alike.size.arms)
    assert isinstance(chart, BarChart)
    assert list(chart.labels) == ["b"]


def test_gaps_compare_equal_seeds_after_the_warm_up() -> None:
    """The losses of seed 1 are far above those of seed 0. On seed 1 the second network is 0.5 above the first."""
    arms = [toy.arm(name, "schedule.warmup_iters=1", iters=4) for name in ("first", "second")]
    found = toy.results({"first": [1.0, 1.0], "second": [None, 1.0]}, arms)
    curves = {("first", 0): [1.0, 1.0, 1.0], ("first", 1): [9.0, 8.0, 7.0], ("second", 1): [9.0, 8.5, 7.5]}
    cells = dict(found.found)
    for (name, seed), losses in curves.items():
        key = Cell(next(arm for arm in arms if arm.network == name), seed).id
        cells[key] = replace(cells[key], curve=((1, 2, 3), losses))
    ((_, chart),) = gaps_over_training(replace(found, found=cells))
    assert isinstance(chart, LineChart)
    (line,) = chart.lines
    assert (list(line.x), list(line.y)) == ([8, 12], [0.5, 0.5])
    assert chart.note.endswith("mean over one seed")


@pytest.mark.parametrize(("shape", "unit", "per_step"), [({"seq_len": 128}, "tokens", 512), ({}, "images", 4)], ids=str)
def test_training_losses_are_drawn_over_the_data_that_was_read(shape: dict[str, int], unit: str, per_step: int) -> None:
    arm = replace(toy.arm(), setting=replace(toy.setting(), shape=shape))
    found = toy.results({"plain": [1.0]}, [arm])
    cells = {name: replace(cell, curve=((1, 2), (3.0, 2.0))) for name, cell in found.found.items()}
    ((_, chart),) = losses_over_training(replace(found, found=cells))
    assert isinstance(chart, LineChart)
    assert (chart.x_label, list(chart.lines[0].x)) == (unit, [per_step, 2 * per_step])
