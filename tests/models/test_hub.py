"""Native models as folders of the Hub: round trip, card, upload."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepsnet.errors import UsageError
from stepsnet.models import create_model, load_model
from stepsnet.models.deit import DeiT
from stepsnet.models.hub import from_pretrained, model_card, push_to_hub, save_pretrained
from stepsnet.runs.folder import PRETRAINED


@pytest.mark.parametrize("name", ["test_steps_deit", "test_steps_transformer"])
def test_a_folder_gives_the_model_back(name: str, tmp_path: Path) -> None:
    model = create_model(name, join="matched_grad")
    save_pretrained(model, tmp_path / "new" / "folder")
    loaded = from_pretrained(tmp_path / "new" / "folder")
    assert loaded.plan == model.plan
    assert all(torch.equal(tensor, loaded.state_dict()[key]) for key, tensor in model.state_dict().items())


def test_the_card_states_plan_cost_data_and_metrics(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"task": "classification", "recipe": "digits", "model": "test_steps_swin", "seed": 3}
    settings["data"] = {"kind": "image_folder", "root": "/a/flowers"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "eval.jsonl").write_text('{"step": 9, "loss": 0.25, "top1": 0.9375}\n')
    (tmp_path / "metrics.jsonl").write_text('{"step": 9, "loss": 0.3}\n')
    model = create_model("test_steps_swin")
    card = model_card(model, run=tmp_path)
    for expected in (
        f'plan="{model.plan}"', "join plain", "| 3 | 12, 16, 24 | 2, 1, 1 |", f"{model.cost().params:,}",
        "image_folder, folder flowers", "recipe digits, 9 steps, seed 3", "| top1 | 0.9375 |",
    ):  # fmt: skip
        assert expected in card


def test_the_cards_that_ship_with_the_package_are_those_of_model_card() -> None:
    for card in PRETRAINED.glob("*/README.md"):
        text, folder = card.read_text(encoding="utf-8"), card.parent
        ((data, command),) = re.findall(r"## Training data\n\n(.*)\n\nTrained by: `(.*)`", text)
        (limits,) = re.findall(r"## Limits\n\n- (.*)", text)
        (use,) = re.findall(r"```python\n(.*)\n```", text, re.DOTALL)
        assert f'create_model("{folder.name}", pretrained=True)' in use
        made = model_card(load_model(folder), run=folder, data=data, command=command, limits=limits, use=use)
        assert made == text


def test_a_card_without_a_run_does_not_invent_one() -> None:
    card = model_card(create_model("test_steps_transformer"))
    assert "not stated" in card
    assert "Not stated." in card
    assert "pipeline_tag: text-generation" in card


def test_a_push_uploads_weights_and_card(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Any] = {}

    def upload_folder(*, folder_path: str, **others: Any) -> None:
        calls.update(others, files=sorted(path.name for path in Path(folder_path).iterdir()))

    api = SimpleNamespace(create_repo=lambda repo, **_: f"https://hub/{repo}", upload_folder=upload_folder)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    assert push_to_hub(create_model("test_steps_deit"), "me/steps") == "https://hub/me/steps"
    assert (calls["repo_id"], calls["files"]) == ("me/steps", ["README.md", "model.safetensors"])


def test_invalid_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no model\.safetensors"):
        from_pretrained(tmp_path)
    with pytest.raises(UsageError, match="built directly"):
        model_card(DeiT(embed_dim=8, depth=1))
