"""`stepsnet plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsnet.cli.main import main
from stepsnet.planner import PlanResult
from stepsnet.planner.planning import Row
from tests.surgery import tiny


def test_the_plan_is_printed_ready_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "test_deit", "--blocks", "8"]) == 0
    printed = capsys.readouterr().out
    assert "plan='16x4, 22x2, 32x2'" in printed
    assert "Why not deeper" in printed


def test_the_plain_network_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "test_deit"]) == 0
    assert capsys.readouterr().out.count(" 32x4\n") == 1


def test_json_has_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "test_deit", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"] in [row["plan"] for row in found["rows"]]


@pytest.mark.parametrize("model", ["timm:test_vit", "hf:FOLDER"])
def test_plans_of_other_libraries_are_those_that_stepify_takes(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if model == "hf:FOLDER":
        model = f"hf:{tmp_path / 'llama'}"
        tiny.llama().save_pretrained(tmp_path / "llama")
    assert main(["plan", model, "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["chosen"]
    assert main(["stepify", model, "--plan", found["plan"], "--out", str(tmp_path / "out"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["blocks_after"], made["macs_after"]) == (found["blocks"], found["macs"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing_like_it"], "there is no model 'nothing_like_it'"),
        (["test_deit", "--macs", "many"], "macs=many is not a size"),
        (["test_deit", "--latency", "fast"], "latency=fast is not a latency"),
        (["test_deit", "--blocks", "999"], "no plan of 999 blocks for test_deit near the budget"),
        (["test_deit", "--steps", "40"], "steps is a number from 1 to 7, not 40"),
        (["timm:no_such_model"], "timm has no model 'no_such_model'"),
    ],
)
def test_wrong_input_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    err = capsys.readouterr().err.strip()
    assert sentence in err
    assert "\n" not in err


def test_a_plan_that_is_slower_than_its_budget_is_called_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Row("16x4, 32x4", 8, 100, 1000, seconds=0.009, measured=0.0125)
    found = PlanResult("test_deit", chosen.plan, chosen, chosen, (chosen,), "24x8", {"seconds": 0.01}, 1, 8, 10, "none")
    monkeypatch.setattr("stepsnet.surgery.planning.plan", lambda *_, **__: found)
    assert main(["plan", "test_deit", "--latency", "10ms"]) == 0
    assert "It was measured at 12.50 ms, more than the budget of 10 ms" in capsys.readouterr().out


STEPIFY = ["stepify", "hf:llama", "--plan", "128x2, 256x1", "--out", "new"]


@pytest.mark.parametrize("words", [["plan", "hf:llama"], STEPIFY])
def test_a_reduced_configuration_is_named(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    limits = {"hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 100}
    monkeypatch.setattr("stepsnet.integrations.foreign.LIMITS", limits)
    assert main(words) == 0
    said = capsys.readouterr()
    assert "hf:llama (reduced from 6.61 G to 0.00 G parameters: hidden_size=256" in said.out + said.err
