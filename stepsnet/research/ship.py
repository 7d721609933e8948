"""Puts a finished run into stepsnet/pretrained, where `create_model(…, pretrained=True)` and `pretrained:NAME` find it.

    python -m stepsnet.research.ship RUN "the command that trained it" "what the data is, and its licence"

The folder gets the files of the run that prediction and generation need, without paths of this machine, and a model
card, README.md, with architecture, plan, cost, data, command, metrics and limits.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from stepsnet.files import replace_file, write_json
from stepsnet.models import load_model
from stepsnet.runs.folder import (
    CLASSES,
    CONFIG,
    GAMMA,
    PRETRAINED,
    RESULT,
    WEIGHTS,
    read_lines,
    read_result,
    read_settings,
)

LIMITS = {
    "language": "It writes English of the 19th century that looks right and means little. It knows bytes, not facts.",
    "classification": "It knows the ten classes of CIFAR-10 and nothing else: other images get one of them too. "
    "Images are scaled to 32×32.",
}


def ship(run: Path, command: str, data: str) -> Path:
    """Copy a run into the package and write its card."""
    config = read_settings(run)
    config |= {"out": "", "data": config["data"] | {"root": ""}}
    model = load_model(run / WEIGHTS)
    folder = PRETRAINED / model.default_cfg["architecture"]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, config)
    for name in (WEIGHTS, RESULT, CLASSES):
        if (run / name).exists():
            shutil.copyfile(run / name, folder / name)
    replace_file(folder / GAMMA, (json.dumps(read_lines(run / GAMMA)[-1]) + "\n").encode())
    cost = model.cost()
    metrics = "\n".join(f"| {name} | {value:.4g} |" for name, value in read_result(run).items())
    card = f"""# {folder.name}

A trained Step by Step Network (arXiv 2511.14329) that comes with stepsnet.

| | |
|---|---|
| family | {model.family} |
| plan | {model.plan} |
| blocks, layers | {cost.blocks}, {cost.layers} |
| parameters | {cost.params / 1e6:.2f} M |
| MACs of one input | {cost.macs / 1e6:.1f} M |

**Data.** {data}

**Training.** `{command}`

**Validation, at the last step.**

| metric | value |
|---|---|
{metrics}

**Limits.** {LIMITS[config["task"]]} It is for trying out the library, not for use.
"""
    replace_file(folder / "README.md", card.encode())
    return folder


if __name__ == "__main__":
    print(ship(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
