"""Fine-tuning by `weights=` and `freeze=`: another number of classes, frozen parts, resume, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from stepsnet.cli.main import main
from stepsnet.errors import UsageError
from stepsnet.models import create_model, load_model, save_model
from stepsnet.train.build import configure
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import resume, train


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with a folder of three classes, and weights for ten."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for name in ("ant", "bee", "cat"):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    torch.manual_seed(3)
    for name in ("test_steps_deit", "test_resnet"):
        save_model(create_model(name, join="matched_grad"), f"{name}.safetensors")
    return tmp_path


def words(*more: str) -> list[str]:
    return ["data.root=images", "data.img_size=32", "batch_size=6", "iters=2", "out=run", *more]


def test_the_command_line_fine_tunes_and_says_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    given = words("weights=test_steps_deit.safetensors", "freeze=stem", "optim.layer_decay=0.7")
    assert main(["train", "image_folder", *given]) == 0
    sentence = "102 of 104 tensors are loaded; new: head.weight, head.bias."
    assert sentence in capsys.readouterr().err
    assert sentence in json.loads(Path("run/environment.json").read_text())["start"]
    config = json.loads(Path("run/config.json").read_text())
    assert (config["model"], config["plan"], config["join"]) == ("test_steps_deit", "16x4, 22x2, 32x2", "matched_grad")
    before, after = load_file("test_steps_deit.safetensors"), load_file("run/weights.safetensors")
    same = {key for key, tensor in after.items() if key in before and torch.equal(tensor, before[key])}
    assert same == {"patch_embed.proj.weight", "patch_embed.proj.bias", "cls_token", "pos_embed"}
    assert load_model("run").get_classifier().weight.shape == (3, 32)


def test_frozen_batch_norms_keep_their_statistics() -> None:
    given = words("weights=test_resnet.safetensors", "freeze=stage2")
    train(configure(get_recipe("image_folder"), given))
    before, after = load_file("test_resnet.safetensors"), load_file("run/weights.safetensors")
    changed = {key for key in before if not key.startswith("head.") and not torch.equal(before[key], after[key])}
    assert not any(key.startswith(("stem.", "stages.0.", "stages.1.")) for key in changed)
    assert any(key.startswith("stages.2.") and key.endswith("running_mean") for key in changed)


def test_a_run_is_resumed_without_the_weights_it_started_from() -> None:
    given = words("weights=test_steps_deit.safetensors", "freeze=2")
    train(configure(get_recipe("image_folder"), given))
    Path("test_steps_deit.safetensors").unlink()
    assert resume(Path("run"), ["iters=3"]).finished


@pytest.mark.parametrize("more", [["model=test_deit"], ["plan=2"], ["join=plain"]], ids=" ".join)
def test_weights_of_another_model_are_refused(more: list[str]) -> None:
    with pytest.raises(UsageError, match=r"test_steps_deit.safetensors (is a|has the plan|was trained with)"):
        train(configure(get_recipe("image_folder"), words("weights=test_steps_deit.safetensors", *more)))
    assert not Path("run").exists()


def test_freezing_needs_weights() -> None:
    with pytest.raises(UsageError, match="freeze=stem would keep random weights"):
        configure(get_recipe("image_folder"), words("freeze=stem"))


def test_a_dry_run_tells_what_would_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "image_folder", *words("weights=test_resnet.safetensors"), "--dry-run"]) == 0
    assert "new: head.weight, head.bias." in capsys.readouterr().out


def test_a_language_model_starts_only_from_its_own_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    Path("book.txt").write_text("one two three four five six seven eight nine ten\n" * 200)
    text = ["model=test_transformer", "data.seq_len=16", "batch_size=2", "iters=1"]
    assert main(["train", "language", "data.root=book.txt", *text, "out=bytes"]) == 0
    assert main(["train", "language", "data.root=book.txt", "weights=bytes", "data.seq_len=16", "batch_size=2",
                 "iters=1", "out=again"]) == 0  # fmt: skip
    assert main(["prepare-text", "book.txt", "--vocab", "260", "--out", "tokens"]) == 0
    capsys.readouterr()
    assert main(["train", "language", "data.root=tokens", *text, "weights=bytes", "out=other"]) == 2
    assert "another tokenizer" in capsys.readouterr().err


def test_evaluation_on_other_classes_is_refused(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels are numbers: the first class of other data would count as the first class of the run."""
    train(configure(get_recipe("image_folder"), words("model=test_deit")))
    shutil.copytree(images / "images", images / "others")
    for part in ("train", "val"):
        (images / "others" / part / "cat").rename(images / "others" / part / "dog")
    assert main(["eval", "run", "data.root=others"]) == 2
    said = "run was trained on other classes (ant, bee, cat) than the data have (ant, bee, dog)."
    assert said in capsys.readouterr().err
