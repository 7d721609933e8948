"""What a study is: networks, data, recipe, seeds and a decision rule, all fixed before anything runs.

A study has arms (a network on a data set, one row of its table). An arm has one cell per seed, and a cell is an
ordinary run of the trainer. Cells are named by what they are, so that studies share runs. A size may begin with a
search for each arm's learning rate on one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.report import svg

if TYPE_CHECKING:
    from stepsnet.cost import Cost
    from stepsnet.report.chart import Chart
    from stepsnet.report.table import Table
    from stepsnet.research.studies.results import CellResult, Outcome, Results
    from stepsnet.train.config import TrainConfig


@dataclass(frozen=True)
class Setting:
    """What all networks of a comparison share: a recipe with its `key=value` words."""

    key: str
    recipe: str
    words: tuple[str, ...]
    about: str
    """Data and training in one line, for the report."""
    shape: Mapping[str, Any] = field(hash=False)
    """The model options given by the data, so that the cost is known without the data."""
    metric: str
    """Shown beside the validation loss: bits_per_byte or top1."""
    data: str = ""
    """The key of the data in `--data KEY=PATH`; empty: the data comes with the library."""
    epoch: int = 0
    """Samples per epoch, for recipes that count in epochs."""
    looks: tuple[int, ...] = ()
    """Steps at which γ is always recorded."""
    look_every: int = 20
    """Steps between other records of γ."""


@dataclass(frozen=True)
class Arm:
    """One network on one data set."""

    setting: Setting
    network: str
    """Its name in cells; setting, network and blocks together name the run."""
    blocks: int
    words: tuple[str, ...]
    label: str
    color: str = svg.STEPS

    @property
    def key(self) -> str:
        return f"{self.setting.key}-{self.network}-{self.blocks}"

    def config(self, seed: int, out: Path | str = "", root: str = "") -> TrainConfig:
        """The configuration of this arm's run under `seed`."""
        from stepsnet.train.config import customise
        from stepsnet.train.recipes import get_recipe

        words = [*self.setting.words, *self.words, f"seed={seed}", f"out={out}"]
        return customise(get_recipe(self.setting.recipe), [*words, f"data.root={root}"] if root else words)

    def steps(self) -> int:
        """Updates of one run."""
        config = self.config(0)
        return config.iters or max(1, round((config.epochs or 0) * (self.setting.epoch // config.batch_size)))

    def model_options(self) -> dict[str, Any]:
        """What `create_model` is called with, the name included."""
        config = self.config(0)
        options = {"name": config.model, "plan": config.plan, "join": config.join, "macro": config.macro}
        return {**options, **self.setting.shape, **config.model_args}

    def cost(self) -> Cost:
        """Blocks, parameters and MACs, from a model on the meta device."""
        return _cost(self)

    def renamed(self, ending: str, *words: str) -> Arm:
        """This arm with further words, under a name with `ending`."""
        return replace(self, network=self.network + ending, words=(*self.words, *words))


@cache
def _cost(arm: Arm) -> Cost:
    from stepsnet.models import create_model

    return create_model(device="meta", **arm.model_options()).cost()


@dataclass(frozen=True)
class Cell:
    """One arm under one seed: one run."""

    arm: Arm
    seed: int

    @property
    def id(self) -> str:
        return f"{self.arm.key}-s{self.seed}"

    def words(self) -> str:
        """The recipe and its arguments, as after `stepsnet train`."""
        return " ".join((self.arm.setting.recipe, *self.arm.setting.words, *self.arm.words, f"seed={self.seed}"))


@dataclass(frozen=True)
class Search:
    """The first phase: every arm at every rate on one seed, with `words` (fewer steps). The lowest loss wins."""

    rates: tuple[float, ...]
    words: tuple[str, ...]
    seed: int = 0
    tuned_as: Callable[[Arm], Arm] = lambda arm: arm
    """The arm that is searched in an arm's place, say the same design at another depth."""

    def cells(self, arm: Arm) -> dict[float, Cell]:
        arms = {rate: self.tuned_as(arm).renamed(f"_try{rate:g}", *self.words, f"lr={rate:g}") for rate in self.rates}
        return {rate: Cell(tuned, self.seed) for rate, tuned in arms.items()}

    def best(self, arm: Arm, found: Mapping[str, CellResult]) -> Arm | None:
        """The arm at its best rate; None while a cell of its search is missing, or if all failed."""
        results = {rate: found.get(cell.id) for rate, cell in self.cells(arm).items()}
        losses = [(result.loss, rate) for rate, result in results.items() if result is not None and result.finished]
        if None in results.values() or not losses:
            return None
        rate = min(losses)[1]
        return arm.renamed(f"_lr{rate:g}", f"lr={rate:g}")


@dataclass(frozen=True)
class Size:
    """How much of a study is run. `effort` says what it takes."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    effort: str
    search: Search | None = None

    def __post_init__(self) -> None:
        keys = [arm.key for arm in self.arms]
        assert len(keys) == len(set(keys)), f"two arms of one name among {keys}"

    def searched(self) -> list[Cell]:
        """The cells of the search for learning rates."""
        cells = [cell for arm in self.arms for cell in self.search.cells(arm).values()] if self.search else []
        return list({cell.id: cell for cell in cells}.values())

    def tuned(self, arm: Arm, found: Mapping[str, CellResult]) -> Arm | None:
        """The arm that is compared: itself, or at the rate that its search found; None while that is open."""
        return self.search.best(arm, found) if self.search else arm

    def cells(self, found: Mapping[str, CellResult] | None = None) -> list[Cell]:
        """The search, then seed by seed, so that an unfinished study has something of every arm.

        Where a learning rate is open, an arm's cells are not among them; `found` are the results so far.
        """
        tuned = [arm for each in self.arms if (arm := self.tuned(each, found or {}))]
        return [*self.searched(), *(Cell(arm, seed) for seed in self.seeds for arm in tuned)]

    def count(self) -> int:
        """All cells, also those whose learning rate is open."""
        return len(self.searched()) + len(self.arms) * len(self.seeds)

    def settings(self) -> list[Setting]:
        return list({arm.setting.key: arm.setting for arm in self.arms}.values())

    def of(self, setting: Setting) -> list[Arm]:
        return [arm for arm in self.arms if arm.setting.key == setting.key]


@dataclass(frozen=True)
class Study:
    """`decide` gives the outcomes by the rule, `draw` the charts; `probes` measure trained models (cell.py)."""

    name: str
    title: str
    question: str
    rule: str
    sizes: Mapping[str, Size]
    decide: Callable[[Results], list[Outcome]]
    draw: Callable[[Results], Iterable[tuple[str, Chart]]]
    tables: Callable[[Results], Iterable[Table]] = lambda _results: ()
    """Tables beside that of the arms."""
    probes: tuple[str, ...] = ()
    equal_cost: Callable[[Arm], object] = lambda arm: (arm.setting.key, arm.blocks)
    """Arms for which it returns the same are of equal cost."""
