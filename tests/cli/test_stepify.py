"""`stepsnet stepify` and `stepsnet deepen` write folders that other commands take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from stepsnet.cli.main import main


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, max_position_embeddings=64,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaModel(config).save_pretrained(folder)
    return f"hf:{folder}"


def test_a_stepified_folder_can_be_looked_at(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "stepped")
    assert main(["stepify", llama, "--plan", "32x4, 64x3", "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks_after"] == 7
    assert main(["info", out]) == 0
    assert "32x4, 64x3" in capsys.readouterr().out
    assert main(["analyze", "gamma", out]) == 0


def test_a_deepened_folder_has_the_new_blocks(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "deeper")
    assert main(["deepen", llama, "--blocks-added", "32x2", "--at", "0,2", "--out", out]) == 0
    assert "blocks      4 → 6" in capsys.readouterr().out
    assert main(["info", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks_after"] == 6


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stepify", "deit_small", "--plan", "3"], "is not a model of another library"),
        (["stepify", "timm:no_such_model", "--plan", "3"], "timm has no model 'no_such_model'"),
        (["stepify", "LLAMA", "--plan", "32x4, 48x3"], "ends at width 48"),
        (["stepify", "LLAMA", "--plan", "40x4, 64x3"], "multiples of"),
        (["stepify", "LLAMA", "--plan", "3", "--blocks", "no.such.list"], "has no module of that name"),
        (["deepen", "LLAMA", "--blocks-added", "many"], "many"),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], sentence: str, llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([llama if word == "LLAMA" else word for word in words] + ["--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_refused(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["stepify", llama, "--plan", "2", "--out", str(tmp_path)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
