"""Looks at a trained cell, without training anything. What they find is kept in the cell's folder, as <name>.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepsnet.training.config import TrainConfig
from stepsnet.training.rundir import write_json

PROBES: dict[str, Callable[[Path, TrainConfig], dict[str, Any]]] = {}


def probe(name: str, folder: Path, config: TrainConfig) -> None:
    """Look at the finished run in `folder`, unless that was done."""
    path = folder / f"{name}.json"
    if not path.exists():
        write_json(path, PROBES[name](folder, config))
