"""State-dict keys are part of the contract: weights saved today must load tomorrow.

keys.json has the key, shape and type of every tensor of the tiny models. A new model adds to it; nothing in it ever
changes. To add: python -m tests.models.test_keys
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsnet.models import create_model
from tests.models.tiny import TINY

GOLDEN = Path(__file__).with_name("keys.json")


def keys_of(name: str) -> dict[str, str]:
    state = create_model(name, device="meta").state_dict()
    return {key: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for key, tensor in state.items()}


@pytest.mark.parametrize("name", TINY)
def test_keys_shapes_and_types_are_those_of_the_first_release(name: str) -> None:
    assert keys_of(name) == json.loads(GOLDEN.read_text())[name]


def test_every_tiny_model_is_in_keys_json() -> None:
    assert sorted(json.loads(GOLDEN.read_text())) == TINY


if __name__ == "__main__":
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    GOLDEN.write_text(json.dumps({name: known.get(name) or keys_of(name) for name in TINY}, indent=1) + "\n")
