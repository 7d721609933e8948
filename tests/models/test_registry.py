"""The names of the models, and costs.json, which `stepsnet models` prints.

To write costs.json after a new model was registered: python -m tests.models.test_registry
"""

from __future__ import annotations

import json
import re

import pytest

from stepsnet.cli.models import COSTS, describe
from stepsnet.models import create_model, list_models
from tests.models.tiny import TINY

every_model = pytest.mark.parametrize("name", TINY)


def test_all_models_have_their_names() -> None:
    sizes = {
        "resnet": ["18", "34", "50"],
        "deit_": ["tiny", "small", "base", *(f"deep_d{n}" for n in (24, 36, 48, 72, 96))],
        "swin_": ["tiny", "small", "base"],
        "swinpp_": ["tiny", "small", "base"],
        "transformer_": ["30m", "44m", "63m"],
    }
    twins = [
        f"{prefix}{family}{size}"
        for family, all_sizes in sizes.items()
        for size in all_sizes
        for prefix in ("", "steps_")
    ]
    deep_swin = [f"swin_deep_d{n}" for n in (24, 48, 72, 96)] + [f"steps_swin_deep_d{n}" for n in (14, 48, 64, 96)]
    tiny = [f"test_{prefix}{family.rstrip('_')}" for family in sizes for prefix in ("", "steps_")]
    mini = [f"{prefix}{family}_mini" for family in ("resnet", "transformer") for prefix in ("", "steps_")]
    assert list_models() == sorted([*twins, *deep_swin, *tiny, "steps_deit_small_d60", *mini])


def test_listing_by_pattern() -> None:
    assert list_models("steps_resnet??") == ["steps_resnet18", "steps_resnet34", "steps_resnet50"]


@pytest.mark.parametrize("name", [name for name in list_models() if re.search(r"_d\d+$", name)])
def test_dn_counts_blocks(name: str) -> None:
    assert len(create_model(name, device="meta").blocks_in_order()) == int(name.rsplit("_d", 1)[1])


@pytest.mark.parametrize("name", [name for name in list_models() if "steps_" not in name])
def test_a_baseline_has_one_step_per_stage(name: str) -> None:
    assert all(len(plan) == 1 for plan in create_model(name, device="meta").plans)


@every_model
def test_test_models_are_tiny(name: str) -> None:
    assert sum(parameter.numel() for parameter in create_model(name).parameters()) <= 200_000


def test_costs_json_has_every_model() -> None:
    assert [row["name"] for row in json.loads(COSTS.read_text())] == list_models()


@pytest.mark.parametrize("row", json.loads(COSTS.read_text()), ids=lambda row: row["name"])
def test_costs_json_has_what_is_counted(row: dict[str, object]) -> None:
    assert describe(str(row["name"])) == row


if __name__ == "__main__":
    rows = ",\n".join(json.dumps(describe(name)) for name in list_models())
    COSTS.write_text(f"[\n{rows}\n]\n")
