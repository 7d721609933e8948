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
from stepsnet.models.hub import CARD, model_card
from stepsnet.runs.folder import (
    CLASSES,
    CONFIG,
    GAMMA,
    PRETRAINED,
    RESULT,
    WEIGHTS,
    read_lines,
    read_settings,
)

LIMITS = {
    "language": "It is for trying out the library: it writes English of the 19th century that means little.",
    "classification": "It is for trying out the library: it knows the ten classes of CIFAR-10 only, and gives any "
    "other image one of them. Images are scaled to 32×32.",
}


def ship(run: Path, command: str, data: str) -> Path:
    """Copy a run into the package and write its card."""
    config = read_settings(run)
    config |= {"out": "", "data": config["data"] | {"root": ""}}
    folder = PRETRAINED / load_model(run / WEIGHTS).default_cfg["architecture"]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, config)
    for name in (WEIGHTS, RESULT, CLASSES):
        if (run / name).exists():
            shutil.copyfile(run / name, folder / name)
    replace_file(folder / GAMMA, (json.dumps(read_lines(run / GAMMA)[-1]) + "\n").encode())
    write_card(folder, command, data)
    return folder


def write_card(folder: Path, command: str, data: str) -> None:
    """Write README.md, the model card, into a folder of stepsnet/pretrained."""
    model, limits = load_model(folder / WEIGHTS), LIMITS[read_settings(folder)["task"]]
    use = f'import stepsnet\n\nmodel = stepsnet.create_model("{folder.name}", pretrained=True)'
    card = model_card(model, run=folder, data=data, command=command, limits=limits, use=use)
    replace_file(folder / CARD, card.encode())


if __name__ == "__main__":
    print(ship(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
