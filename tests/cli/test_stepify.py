"""`stepsnet stepify` and `stepsnet deepen` write folders that other commands take."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import transformers
from PIL import Image

from stepsnet.cli.main import main
from stepsnet.cli.resolve import find_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=256, max_position_embeddings=64,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return f"hf:{folder}"


def test_a_stepified_folder_can_be_looked_at(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "stepped")
    assert main(["stepify", llama, "--plan", "32x4, 64x3", "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks_after"] == 7
    assert main(["info", out]) == 0
    assert "32x4, 64x3" in capsys.readouterr().out
    assert main(["info", out, "--plan", "5"]) == 2
    assert "--plan is for registered names" in capsys.readouterr().err
    assert main(["analyze", "gamma", out]) == 0


def test_a_deepened_folder_has_the_new_blocks(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "deeper")
    assert main(["deepen", llama, "--blocks-added", "32x2", "--at", "0,2", "--out", out]) == 0
    assert "blocks      4 → 6" in capsys.readouterr().out
    assert main(["info", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks_after"] == 6
    assert main(["doctor", out]) == 0
    assert "Blocks 1, 4 of 6 change their inputs by less than 1 %" in capsys.readouterr().out  # they are new
    assert json.loads((Path(out) / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert main(["stepify", f"hf:{out}", "--plan", "2", "--out", str(tmp_path / "again")]) == 2
    assert "was stepified or deepened before" in capsys.readouterr().err
    assert main(["generate", out, "--prompt", "It"]) == 2
    assert f"There is no run in {out}: its config.json is that of a model." in capsys.readouterr().err


def test_a_deepened_folder_is_trained_on_text(llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("All work and no play makes Jack a dull boy. " * 40)
    assert main(["deepen", llama, "--blocks-added", "32x2", "--out", "deeper"]) == 0
    short = ["data.seq_len=16", "batch_size=2", "iters=2", "out=run"]
    assert main(["train", "language", "data.root=text.txt", "model=deeper", *short]) == 0
    assert main(["eval", "run"]) == 0
    assert sorted(path.name for path in Path("run").glob("*.safetensors")) == ["weights.safetensors"]


def test_a_stepified_folder_is_trained_on_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        place = Path("images") / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (30 * number, 0, 90)).save(place / f"{number}.png")
    assert main(["stepify", "timm:test_vit2", "--plan", "2", "--out", "stepped"]) == 0
    short = ["data.img_size=160", "batch_size=2", "iters=2", "workers=0", "out=run"]
    assert main(["train", "image_folder", "data.root=images", "model=stepped", *short]) == 0
    assert find_model("run").plan == find_model("stepped").plan


def test_a_dry_run_of_a_stepified_folder_shows_no_keys_of_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 40)).save("a.png")
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        place = Path("images") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(Path("a.png").read_bytes())
    assert main(["stepify", "timm:test_vit2", "--plan", "2", "--out", "stepped"]) == 0
    capsys.readouterr()
    words = ["data.root=images", "data.img_size=160", "batch_size=2", "--dry-run"]
    assert main(["train", "image_folder", "model=stepped", *words]) == 0
    keys = {line.partition(" = ")[0] for line in capsys.readouterr().out.splitlines()}
    assert keys & {"model", "plan", "join", "macro", "weights", "freeze", "optim.layer_decay", "compile_backend"} == {
        "model"
    }


def test_a_stepified_folder_is_measured_and_exported(
    llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["stepify", llama, "--plan", "32x2, 64x1", "--out", "stepped"]) == 0
    capsys.readouterr()
    assert main(["bench", "speed", "stepped", "--against", "eager", "--batch", "1", "--rounds", "7", "--json"]) == 0
    assert "stepped" in capsys.readouterr().out
    assert main(["export", "stepped", "--format", "torch-export", "--out", "stepped.pt2"]) == 0
    assert Path("stepped.pt2").is_file()


def one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command says: exit code 2, one line, no traceback, nothing on standard output."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert "\n" not in printed.err.strip()
    return printed.err.strip()


@pytest.mark.parametrize("library", ["timm", "transformers"])
@pytest.mark.parametrize(
    "words",
    [["stepify", "--plan", "2", "--out", "never"], ["deepen", "--blocks-added", "8x1", "--out", "never"], ["plan"]],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    model = {"timm": "timm:test_vit", "transformers": "hf:llama"}[library]
    found = one_sentence([words[0], model, *words[1:]], capsys)
    assert found == f"{library} is not installed, and this needs it: pip install '.[{library}]' in a clone of stepsnet."


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stepify", "deit_small", "--plan", "3"], "is not a model of another library"),
        (["stepify", "timm:no_such_model", "--plan", "3"], "timm has no model 'no_such_model'"),
        (["stepify", "hf:lama", "--plan", "3"], "transformers has no model type 'lama'; nearest: llama"),
        (["deepen", "no_such_model", "--blocks-added", "32x2"], "There is no model, run or file 'no_such_model'"),
        (["deepen", "hf:no/folder", "--blocks-added", "32x2"], "no/folder has no config.json; give a folder"),
        (["stepify", "timm:test_resnet", "--plan", "2"], "no list of residual blocks was recognised; name it with"),
        (["deepen", "timm:test_resnet", "--blocks-added", "8x1"], "(command line: `stepify --blocks PATH`)"),
        (["stepify", "LLAMA", "--plan", "3", "--blocks", "no.such.list"], "has no module of that name"),
        (["stepify", "LLAMA", "--plan", "32x4, 48x3"], "ends at width 48"),
        (["stepify", "LLAMA", "--plan", "40x4, 64x3"], "multiples of 32 (head dimension and groups of heads)"),
        (["deepen", "LLAMA", "--blocks-added", "40x1"], "multiples of 32 (head dimension and groups of heads)"),
        (["stepify", "timm:test_vit", "--plan", "33x4, 64x3", "--heads", "keep_count"], "2 heads do not divide"),
        (["deepen", "LLAMA", "--blocks-added", "128x1"], "width 128 do not fit into a state of 64 channels"),
        (["deepen", "LLAMA", "--blocks-added", "many"], "many"),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], sentence: str, llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [llama if word == "LLAMA" else word for word in words]
    assert sentence in one_sentence([*words, "--out", str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


def test_blocks_that_are_not_found_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=256
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "one")
    capsys.readouterr()
    words = ["stepify", f"hf:{tmp_path / 'one'}", "--plan", "32x2, 64x1", "--out", str(tmp_path / "out")]
    assert "no list of residual blocks was recognised" in one_sentence(words, capsys)
    assert main([*words, "--blocks", "model.layers"]) == 0
    assert "blocks      1 → 3" in capsys.readouterr().out


def test_a_folder_that_is_not_empty_is_refused(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["stepify", llama, "--plan", "2", "--out", str(tmp_path)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["stepify", "deepen"])
def test_no_two_examples_write_to_one_folder(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    folders = re.findall(rf"stepsnet {command} .*--out (\S+)", capsys.readouterr().out)
    assert len(folders) == len(set(folders)) > 1
