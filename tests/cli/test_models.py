"""`stepsnet models`, `info` and `reproduce`, called as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepsnet.cli.main import main


def test_models_lists_names_with_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "test_*", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"test_deit", "test_steps_swin"} <= {row["name"] for row in rows}
    assert all(row["params"] <= 200_000 for row in rows)


def test_models_as_a_table_is_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "steps_deit_deep_d96"]) == 0
    assert "34x24, 48x12, 68x12, 96x12, 136x12, 192x12, 272x12" in capsys.readouterr().out


def test_info_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "steps_deit_small", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures | {"blocks": 24, "layers": 122, "params": 22_090_312, "macs": 4_729_185_984} == figures
    assert (figures["name"], figures["family"], figures["plan"]) == ("steps_deit_small", "deit", "192x12, 272x6, 384x6")


def test_info_counts_another_plan_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "deit_small", "--plan", "3", "--img-size", "32", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["plan"] == "192x12, 272x6, 384x6"
    assert figures["input_size"] == [3, 32, 32]
    assert figures["macs"] < 200_000_000


def test_info_draws_one_bar_a_step_as_wide_as_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "steps_deit_small"]) == 0
    bars = [line for line in capsys.readouterr().out.splitlines() if line.endswith("blocks") and "█" in line]
    lengths = [line.count("█") + line.count("▓") for line in bars]
    assert [line.split("  ")[-1] for line in bars] == ["12 blocks", "6 blocks", "6 blocks"]
    assert lengths[0] == pytest.approx(lengths[2] * 192 / 384, abs=1)
    assert lengths[1] == pytest.approx(lengths[2] * 272 / 384, abs=1)


def test_info_draws_the_reverse_macro_as_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["info", "deit_small", "--plan", "3", "--macro", "reverse"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("deit_small (deit), plan 192x12, 272x6, 384x6, macro reverse (wide to narrow)\n")
    assert [line[:3] for line in said.splitlines() if line.endswith("blocks")] == ["384", "272", "192"]
    assert "join" not in said
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["macro"] == "reverse"


def test_reproduce_prints_our_counts_and_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table8", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    last = table["rows"][-1]
    assert last["printed"]["layers"] == "182"
    assert last["ours"]["layers"] == 182
    assert main(["reproduce", "table8"]) == 0
    assert "= 182" in capsys.readouterr().out


def test_reproduce_shows_exceptions_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table5a"]) == 0
    assert "! 2.6 G" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["info", "deit_smal"], ["deit_smal", "deit_small"]),
        (["info", "deit_small", "--plan", "192x12, 272x6"], ["272", "384"]),
        (["info", "deit_small", "--plan", "272x6, 192x12, 384x6"], ["272", "192", "wider"]),
        (["info", "deit_small", "--plan", "192by12"], ["192by12", "192x12"]),
        (["info", "swin_tiny", "--plan", "96x2; 192x2"], ["4 stages", "2"]),
        (["info", "deit_small", "--img-size", "8"], ["8×8", "16×16"]),
        (["info", "transformer_30m", "--img-size", "32"], ["--img-size", "takes text"]),
        (["models", "nothing*"], ["nothing*"]),
        (["reproduce", "table99"], ["table99", "table9"]),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(
    words: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    for fact in facts:
        assert fact in said.err


@pytest.mark.parametrize("command", [["info"], ["doctor"], ["analyze", "gamma"]])
def test_a_damaged_configuration_is_one_sentence(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"task": "cla')
    assert main([*command, str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_info_of_a_language_model_has_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "test_steps_transformer"]) == 0
    assert ", KV cache " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "join"),
    [(["steps_deit_tiny"], "plain"), (["steps_deit_tiny", "--join", "matched_grad"], "matched_grad"),
     (["steps_transformer_mini"], "matched_grad")],
)  # fmt: skip
def test_info_names_the_joins(words: list[str], join: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", *words]) == 0
    assert f", {join} joins\n" in capsys.readouterr().out
    assert main(["info", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["join"] == join


def test_the_legend_of_a_drawing_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["info", "steps_resnet18"]) == 0
    drawing = capsys.readouterr().out
    assert "░ no blocks: passes through" in drawing
    assert max(map(len, drawing.splitlines())) <= 50
