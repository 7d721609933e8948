"""The demo: a fair comparison, run for real in the small, and honest about what came out."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepsnet.models import create_model
from stepsnet.models.model import Model
from stepsnet.research.studies.demo import NETWORKS, Demo, Network, Outcome, config_of, run_demo
from stepsnet.research.studies.demo_report import findings, write_report


def outcome(key: str, top1: float, train_loss: float = 1.0) -> Outcome:
    return Outcome(key, f"the {key}", "8x2", "plain", 2, 1000, 2000, train_loss, {"top1": top1, "loss": 1.0}, 1.0, 0.8, 0.5, 3.0)


def demo(**top1: float) -> Demo:
    return Demo(11, 10, 5.0, [outcome(key, value) for key, value in top1.items()])


def model_of(network: Network) -> Model:
    config = config_of(network, 0, Path("out"))
    options = {"num_classes": 10, "in_chans": 1, "img_size": 8, **config.model_args}
    model = create_model(config.model, plan=config.plan, join=config.join, device="meta", **options)
    assert isinstance(model, Model)
    return model


def test_the_networks_cost_the_same() -> None:
    baseline, *others = [model_of(network).cost() for network in NETWORKS]
    for cost in others:
        assert cost.blocks == baseline.blocks
        assert cost.params == pytest.approx(baseline.params, rel=0.03)
        assert cost.macs == pytest.approx(baseline.macs, rel=0.05)


def test_the_networks_differ_in_plan_and_join_alone() -> None:
    configs = [config_of(network, 4, Path("out")) for network in NETWORKS]
    same = [replace(config, plan="", join="", out="", model_args={**config.model_args, "embed_dim": 0}) for config in configs]
    assert same[0] == same[1] == same[2]
    assert [config.join for config in configs] == ["plain", "plain", "matched"]


def test_a_small_one_runs_in_processes_of_its_own(tmp_path: Path) -> None:
    tiny = [replace(network, plan=plan) for network, plan in zip(NETWORKS, ("8x2", "4x1, 8x1", "4x1, 8x1"), strict=True)]
    watched: Counter[str] = Counter()

    def watch(network: Network, metrics: Mapping[str, Any]) -> None:
        assert metrics["step"] == watched[network.key] + 1
        watched[network.key] += 1

    found = run_demo(3, tmp_path, watch, networks=tiny, iters=4)
    assert watched == {"residual": 4, "steps": 4, "matched": 4}
    assert [one.key for one in found.networks] == ["residual", "steps", "matched"]
    assert all(one.blocks == 2 and 0 <= one.valid["top1"] <= 1 and one.gamma_late > 0 for one in found.networks)
    assert json.loads((tmp_path / "demo.json").read_text())["seed"] == 3
    text = write_report(found, tmp_path).read_text()
    assert text.count("<polyline") >= 6
    assert "4x1, 8x1" in text


def test_the_better_accuracy_comes_first_and_the_loss_decides_between_equals() -> None:
    level = Demo(0, 1, 1.0, [outcome("residual", 0.5), outcome("steps", 0.7, 0.4), outcome("matched", 0.7, 0.3)])
    assert level.ranking() == ["matched", "steps", "residual"]


def test_what_came_out_is_said_as_it_is() -> None:
    sentence, verdict = findings(demo(residual=0.9, steps=0.5, matched=0.7))
    assert sentence == "Validation accuracy under seed 11: first the residual (90.0 %), then the matched (70.0 %), then the steps (50.0 %)."
    assert verdict.startswith("This is not what the confirmation found")


def test_the_confirmed_ranking_is_recognised() -> None:
    assert findings(demo(residual=0.4, steps=0.3, matched=0.7))[1].startswith("As in the confirmation")


def test_leaving_early_ends_the_processes(tmp_path: Path) -> None:
    tiny = [replace(network, plan="8x1") for network in NETWORKS[:1]]

    def leave(network: Network, metrics: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_demo(0, tmp_path, leave, networks=tiny, iters=1_000_000)
    assert multiprocessing.active_children() == []
