"""Trained weights that come with the package: `create_model(pretrained=True)`, `pretrained:NAME`, generate, predict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from stepsnet.cli.main import main
from stepsnet.data.text.vocabulary import ByteVocabulary
from stepsnet.models import create_model
from stepsnet.runs.folder import PRETRAINED

NAMES = sorted(card.parent.name for card in PRETRAINED.glob("*/README.md"))
SENTENCE = "It was the best of times, and the old man looked at his wife with a smile when she came into the room."


def test_all_trained_weights_take_at_most_six_megabytes() -> None:
    assert NAMES == ["steps_resnet_mini", "steps_transformer_mini"]
    assert sum(file.stat().st_size for file in PRETRAINED.rglob("*")) <= 6e6


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_run_names_no_folder_of_the_machine_that_trained_it(name: str) -> None:
    config = json.loads((PRETRAINED / name / "config.json").read_text())
    assert (config["model"], config["out"], config["data"]["root"]) == (name, "", "")


def test_the_language_model_predicts_english() -> None:
    model = create_model("steps_transformer_mini", pretrained=True).eval()
    tokens = torch.tensor(ByteVocabulary().encode(SENTENCE))[None]
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:])
    assert loss < 2.2  # nats per byte; guessing is 5.5, and the frequencies of letters give about 3


def test_the_classifier_tells_ten_classes_better_than_chance_by_its_record() -> None:
    assert json.loads((PRETRAINED / "steps_resnet_mini" / "result.json").read_text())["top1"] > 0.6
    assert len(json.loads((PRETRAINED / "steps_resnet_mini" / "classes.json").read_text())["classes"]) == 10


def test_a_prompt_alone_is_continued_by_the_shipped_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "The old ", "--tokens", "8", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("The old ")


def test_images_alone_are_named_by_the_shipped_classifier(tmp_path: Path) -> None:
    Image.new("RGB", (48, 40), (90, 160, 240)).save(tmp_path / "sky.png")
    assert main(["predict", str(tmp_path / "sky.png"), "--out", str(tmp_path / "named"), "--top", "2"]) == 0
    (found,) = json.loads((tmp_path / "named" / "predictions.json").read_text())["pictures"]
    assert len(found["top"]) == 2


def test_a_missing_image_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "no_such.png"]) == 2
    assert "There is no image no_such.png." in capsys.readouterr().err


def test_trained_weights_that_do_not_exist_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pretrained:deit_tiny"]) == 2
    assert "there are no pretrained weights of deit_tiny, only of steps_resnet_mini" in capsys.readouterr().err


def test_a_shipped_model_is_not_continued(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "pretrained:steps_resnet_mini", "iters=100000"]) == 2
    assert "weights=pretrained:steps_resnet_mini starts a new run" in capsys.readouterr().err


def test_an_empty_prompt_starts_a_new_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.strip()


def test_the_doctor_examines_trained_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pretrained:steps_transformer_mini", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "pretrained:steps_transformer_mini"


def test_a_pretrained_model_takes_another_number_of_classes() -> None:
    model = create_model("steps_resnet_mini", pretrained=True, num_classes=3)
    trained = create_model("steps_resnet_mini", pretrained=True)
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    assert torch.equal(next(model.parameters()), next(trained.parameters()))
