"""What an independent walk found: keys without effect that were accepted, and errors that named the wrong thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsnet.cli.main import main


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
def test_a_key_without_effect_is_refused(
    word: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", word, "augment.crop=none", "iters=1", "--dry-run"]) == 2
    assert why in capsys.readouterr().err


def test_the_crop_of_validation_acts_on_images_that_already_have_the_size(capsys: pytest.CaptureFixture[str]) -> None:
    from stepsnet.data.config import DataConfig
    from stepsnet.data.images.datasets import make_transform
    from stepsnet.data.images.readers import load_images

    whole, centre = (DataConfig(kind="digits", img_size=32, crop_pct=share) for share in (1.0, 0.5))
    images = load_images(whole)
    found = [make_transform(images.valid, None, data, images.mean, images.std) for data in (whole, centre)]
    assert type(found[0]) is not type(found[1])


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


def test_a_stepified_model_takes_no_join(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stepsnet.json").write_text("{}")
    assert main(["train", "digits", f"model={tmp_path}", "join=plain", "--dry-run"]) == 2
    assert "a stepified model has its own plan and joins" in capsys.readouterr().err


def test_files_that_are_no_images_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("text")
    assert main(["predict", "a.txt"]) == 2
    assert "None of the 1 file is an image that can be read." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["predict", "missing.jpg"], "There is no image missing.jpg."),
        (["predict", "missing.jpg", "other.png"], "There is no image missing.jpg."),
        (["generate", "Hello"], "a prompt of one word needs --prompt"),
        (["info", "deit_smal"], "nearest: deit_small"),
    ],
)
def test_an_error_names_what_is_missing(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "timm:" not in said
