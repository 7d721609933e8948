"""What a study is: networks on data under one recipe, seeds, and the rule that decides, all fixed before anything runs.

A study has arms (a network on a data set, one row of its table), an arm has one cell a seed, and a cell is an ordinary run of the one
training loop. Cells are named by what they are, so that studies which share one share its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.report import svg

if TYPE_CHECKING:
    from stepsnet.cost import Cost
    from stepsnet.report.chart import Chart
    from stepsnet.report.table import Table
    from stepsnet.research.studies.results import Results
    from stepsnet.research.studies.rules import Outcome
    from stepsnet.train.config import TrainConfig


@dataclass(frozen=True)
class Setting:
    """What all networks of a comparison have in common: a recipe with its `key=value` words."""

    key: str
    recipe: str
    words: tuple[str, ...]
    about: str
    """Data and training in one line, for the report."""
    shape: Mapping[str, Any] = field(hash=False)
    """What the data dictates to the model, so that its cost is known without the data."""
    metric: str
    """What is shown beside the validation loss: bits_per_byte or top1."""
    data: str = ""
    """What `--data` calls the data it needs; empty: none but what comes with the library."""
    epoch: int = 0
    """Samples an epoch, where the recipe counts in epochs."""
    looks: tuple[int, ...] = ()
    """Steps at which γ is always recorded."""


@dataclass(frozen=True)
class Arm:
    """One network on one data set."""

    setting: Setting
    network: str
    """Its name in cells, which together with the setting and the blocks says all of it."""
    blocks: int
    words: tuple[str, ...]
    label: str
    color: str = svg.STEPS

    @property
    def key(self) -> str:
        return f"{self.setting.key}-{self.network}-{self.blocks}"

    def config(self, seed: int, out: Path | str = "", root: str = "") -> TrainConfig:
        """The run of this arm under `seed`."""
        from stepsnet.train.config import customise
        from stepsnet.train.recipes import get_recipe

        words = [*self.setting.words, *self.words, f"seed={seed}", f"out={out}"]
        return customise(get_recipe(self.setting.recipe), [*words, f"data.root={root}"] if root else words)

    def steps(self) -> int:
        """Updates of one run."""
        config = self.config(0)
        return config.iters or max(1, round((config.epochs or 0) * (self.setting.epoch // config.batch_size)))

    def cost(self) -> Cost:
        """Blocks, parameters and MACs, from a model on the meta device."""
        return _cost(self)


@cache
def _cost(arm: Arm) -> Cost:
    from stepsnet.models import create_model

    config = arm.config(0)
    options: dict[str, Any] = {"plan": config.plan, "join": config.join, "macro": config.macro, **arm.setting.shape, **config.model_args}
    return create_model(config.model, device="meta", **options).cost()


@dataclass(frozen=True)
class Cell:
    """One arm under one seed: one run."""

    arm: Arm
    seed: int

    @property
    def id(self) -> str:
        return f"{self.arm.key}-s{self.seed}"


@dataclass(frozen=True)
class Size:
    """How much of a study is run. `effort` says what it takes."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    effort: str

    def __post_init__(self) -> None:
        keys = [arm.key for arm in self.arms]
        assert len(keys) == len(set(keys)), f"two arms of one name among {keys}"

    def cells(self) -> list[Cell]:
        """Seed by seed, so that a study cut short has something of every arm."""
        return [Cell(arm, seed) for seed in self.seeds for arm in self.arms]

    def settings(self) -> list[Setting]:
        return list({arm.setting.key: arm.setting for arm in self.arms}.values())

    def of(self, setting: Setting) -> list[Arm]:
        return [arm for arm in self.arms if arm.setting.key == setting.key]


@dataclass(frozen=True)
class Study:
    """`decide` gives the outcomes by the rule, `draw` the figures. `probes` are looks at trained models, by name (probes.py)."""

    name: str
    title: str
    question: str
    rule: str
    sizes: Mapping[str, Size]
    decide: Callable[[Results], list[Outcome]]
    draw: Callable[[Results], Iterable[tuple[str, Chart]]]
    tables: Callable[[Results], Iterable[Table]] = lambda _results: ()
    """Further ones, beside that of the arms."""
    probes: tuple[str, ...] = ()
    equal_cost: Callable[[Arm], object] = lambda arm: (arm.setting.key, arm.blocks)
    """Arms for which it returns the same are of equal cost."""
