"""A study small enough for tests, and run folders like those of trained cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepsnet.research.studies.pages import gains_over_the_first
from stepsnet.research.studies.results import CellResult, Outcome, Results, contrast
from stepsnet.research.studies.study import Arm, Cell, Setting, Size, Study
from stepsnet.runs.folder import create
from stepsnet.train.typed import to_dict

WORDS = (
    "model=test_deit", "model_args.embed_dim=16", "model_args.patch_size=16", "batch_size=4",
    "schedule.warmup_epochs=0", "eval.every=0", "eval.batch_size=360", "checkpoint.every=2", "augment.crop=none",
)  # fmt: skip


def setting(iters: int = 5, data: str = "") -> Setting:
    shape = {"num_classes": 10, "in_chans": 1, "img_size": 32}
    return Setting("toy", "digits", (*WORDS, f"iters={iters}"), "a few digits", shape, "top1", data=data, looks=(1, 2))


def arm(network: str = "plain", *words: str, iters: int = 5, data: str = "") -> Arm:
    return Arm(setting(iters, data), network, 2, ("plan=16x2", *words), network)


def decide(results: Results) -> list[Outcome]:
    first, *others = results.size.arms
    return [
        contrast(results, f"{other.network} beats {first.network}", better=[other.key], worse=[first.key])
        for other in others
    ]


def study(*arms: Arm, seeds: tuple[int, ...] = (0,), name: str = "toy") -> Study:
    sizes = {"quick": Size(arms, seeds, "seconds")}
    return Study(name, "A toy", "Does it run?", "The lower one wins.", sizes, decide, gains_over_the_first)


def results(losses: dict[str, list[float | None]], arms: list[Arm] | None = None) -> Results:
    """Made-up results: one loss a seed for every network; None stands for a failed cell."""
    arms = arms or [arm(network) for network in losses]
    seeds = tuple(range(len(next(iter(losses.values())))))
    found = {}
    for one in arms:
        for seed, loss in enumerate(losses[one.network]):
            cell = Cell(one, seed)
            found[cell.id] = made_up(cell, loss)
    return Results(Size(tuple(arms), seeds, ""), found)


def made_up(cell: Cell, loss: float | None, **probes: Any) -> CellResult:
    if loss is None:
        return CellResult(cell.id, cell.seed, "failed", error="it broke")
    return CellResult(
        cell.id, cell.seed, "finished", loss, {"loss": loss, "top1": 0.5}, {"0": 1.0, "1": 0.9, "2": 0.8}, probes,
        words=cell.words(),
    )


def pretend(pool: Path, cell: Cell, loss: float, **probes: Any) -> Path:
    """A run folder as a finished cell leaves it."""
    folder = pool / cell.id
    create(folder, to_dict(cell.arm.config(cell.seed, folder)))
    (folder / "metrics.jsonl").write_text(
        "".join(f"{json.dumps({'step': step, 'loss': loss, 'seconds': 2.0})}\n" for step in range(1, 6))
    )
    looks: Iterator[dict[str, Any]] = ({"step": step, "gamma": [1.0, 0.5]} for step in (0, *cell.arm.setting.looks))
    (folder / "gamma.jsonl").write_text("".join(f"{json.dumps(look)}\n" for look in looks))
    (folder / "result.json").write_text(json.dumps({"step": 5, "loss": loss, cell.arm.setting.metric: 0.5}))
    for name, found in probes.items():
        (folder / f"{name}.json").write_text(json.dumps(found))
    return folder
