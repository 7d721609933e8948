"""What a file says about the model in it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stepsnet import __version__
from stepsnet.export.shapes import Axis
from stepsnet.models import Model

FACTS = "stepsnet.json"
"""The name of the facts inside a .pt2 file."""
PREFIX = "stepsnet."
"""What precedes each of them in formats where others have entries too."""


def facts_of(model: Model, axes: Sequence[Axis]) -> dict[str, str]:
    """Name, plan, classes, how to normalise pictures, what may vary, and the version, each as a string (JSON where it is not a word)."""
    config = model.default_cfg
    facts = {
        "name": config.get("architecture", type(model).__name__),
        "family": model.family,
        "plan": model.plan,
        "version": __version__,
        "input_size": json.dumps(model.input_size),
        "free": json.dumps({axis.name: [axis.smallest, axis.largest, axis.step] for axis in axes}),
    }
    known = ("num_classes", "class_names", "mean", "std", "vocab_size")
    return facts | {key: json.dumps(config[key], ensure_ascii=False) for key in known if key in config}
