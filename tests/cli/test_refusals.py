"""Bad input is refused with one sentence before work begins, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsnet.cli.main import COMMANDS, load, main, parser_of

QUICK = ["model=test_deit", "iters=1", "batch_size=64", "eval.batch_size=360"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stepify", "timm:test_vit", "--plan", "1", "--out", "new"], "--plan 1 changes nothing: timm:test_vit has"),
        (["stepify", "timm:test_vit", "--plan", "64x6", "--out", "new"], "has the plan 64x6"),
        (["export", "test_deit", "--dynamic", "--out", "new.onnx"], "but the image size is fixed"),
        (["generate", "The old man", "--stop", ""], "a stop string must not be empty"),
        (["generate", "runs/nope"], "There is no run in runs/nope"),
        (["models", "--jso"], "unrecognized arguments: --jso"),
        (["resume"], "the following arguments are required: run (see"),
        (["info", "test_transformer", "--img-size", "64"], "--img-size is for models of images; test_transformer"),
        (["generate", "--prompt", "The ", "--top-k", "1", "--seed", "3"], "--seed has no effect with --top-k 1"),
        (["generate", "--prompt", "The ", "--top-k", "1", "--temperature", "2"], "--temperature has no effect with"),
        (["generate", "--prompt", "The ", "--top-k", "300"], "--top-k 300 has no effect: the model has 256 tokens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_it_is_refused_and_nothing_is_printed_or_written(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["predict", "missing.jpg"], "There is no image missing.jpg."),
        (["predict", "missing.jpg", "other.png"], "There is no image missing.jpg."),
        (["generate", "Hello"], "a prompt of one word needs --prompt"),
        (["info", "deit_smal"], "nearest: deit_small"),
    ],
)
def test_an_error_names_what_is_missing(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "timm:" not in said


@pytest.mark.parametrize("name", [name for group in COMMANDS.values() for name in group])
def test_no_option_can_be_abbreviated(name: str) -> None:
    parser = parser_of(name, load(name))
    options = [option for action in parser._actions for option in action.option_strings if len(option) > 5]
    for option in options:
        assert option[:-1] in options or parser._get_option_tuples(option[:-1]) == []


def test_an_unknown_join_is_answered_with_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=test_steps_deit", "join=nope", "--dry-run"]) == 2
    assert capsys.readouterr().err.rstrip(".\n").endswith("plain, matched_grad")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("data.valid=imgs", "data.valid has no effect with data.kind=digits"),
        ("data.valid_fraction=0.5", "data.valid_fraction has no effect with data.kind=digits"),
        ("data.strict=true", "data.strict has no effect with data.kind=digits"),
        ("augment.mix_prob=0.5", "unless augment.mixup or augment.cutmix is above 0"),
        ("augment.mix_switch=0.5", "unless augment.mixup and augment.cutmix are above 0"),
        ("augment.randaugment_std=1", "unless augment.randaugment is above 0"),
        ("augment.crop_padding=2", "it is for augment.crop=pad"),
        ("augment.crop_min_scale=0.5", "it is for augment.crop=resized"),
    ],
)
def test_a_key_without_effect_is_refused(word: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", word, "augment.crop=none", "iters=1", "--dry-run"]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("detect.norm=group", "detect.norm has no effect with detect.heads=mask_rcnn; it is for detect.heads=cascade"),
        ("detect.mask_convs=7", "detect.mask_convs has no effect with detect.masks=false"),
    ],
)
def test_a_key_of_other_detectors_is_refused(word: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "object_folder", "data.root=nowhere", word, "detect.masks=false", "--dry-run"]) == 2
    assert why in capsys.readouterr().err


def test_a_stepified_model_takes_no_join(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "stepsnet.json").write_text("{}")
    assert main(["train", "digits", f"model={folder}", "join=plain", "--dry-run"]) == 2
    assert "a model of `stepify` or `deepen` has its own plan and joins" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["checkpoint.every=3", "checkpoint.keep=2", "nonfinite=skip", "parallel=ddp"])
def test_eval_refuses_keys_of_training(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "out=run"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", key]) == 2
    assert f"'{key.partition('=')[0]}' cannot change" in capsys.readouterr().err


def test_a_deepened_model_of_this_package_is_trained_by_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deepen", "pretrained:steps_transformer_mini", "--blocks-added", "48x1", "--out", "deeper"]) == 0
    capsys.readouterr()
    assert main(["train", "python_docs", "model=deeper"]) == 2
    assert "give weights=deeper/weights.safetensors instead of model=" in capsys.readouterr().err


def test_the_detections_have_a_place_before_they_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text('{"task": "detection"}')
    assert main(["eval", "run", "--results", "nowhere/found.json"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err


def test_an_unwritable_file_is_refused_before_the_evaluation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text('{"task": "detection"}')
    monkeypatch.setattr("stepsnet.train.evaluate.evaluate_run", lambda *_, **__: pytest.fail("it was evaluated"))
    assert main(["eval", "run", "--results", "/proc/x"]) == 2
    assert "Cannot read or write /proc/x" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["stepify", "--plan", "2"], ["deepen", "--blocks-added", "32x2"]], ids=" ".join)
@pytest.mark.parametrize("out", ["/proc/x", "file/new", "/proc/x/y"])
def test_an_unwritable_folder_is_refused_before_the_model_is_changed(
    words: list[str], out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").touch()
    load_model = "stepsnet.integrations.foreign.load_foreign"
    monkeypatch.setattr(load_model, lambda *_, **__: pytest.fail("the model was loaded"))
    assert main([words[0], "timm:test_vit", *words[1:], "--out", out]) == 2
    assert "Cannot read or write" in capsys.readouterr().err


def test_files_that_are_no_images_leave_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.txt").write_text("text")
    assert main(["predict", "a.txt"]) == 2
    assert "None of the 1 file is an image that can be read." in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("command", ["info", "doctor", "export"])
def test_a_folder_of_transformers_needs_its_prefix(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("llama").mkdir()
    Path("llama/config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    assert main([command, "llama"]) == 2
    assert "llama is a model of transformers; write hf:llama." in capsys.readouterr().err


def test_a_stepified_model_keeps_its_image_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stepify", "timm:test_vit", "--plan", "2", "--out", "stepped"]) == 0
    assert main(["export", "stepped", "--image-size", "64", "--out", "new.onnx"]) == 2
    assert "keeps the image size it was made for, 160×160, and cannot take 64×64" in capsys.readouterr().err


def test_a_device_without_values_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "device=meta"]) == 2
    assert "device=meta holds no values" in capsys.readouterr().err
