"""`stepsnet predict` and `stepsnet eval --results` on small runs of detection and segmentation."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stepsnet.cli.main import main
from stepsnet.cli.predict import shown_names, unique_stems
from stepsnet.report.annotate import colour, draw_objects
from stepsnet.train.build import task_of
from stepsnet.train.config import customise, read_config
from stepsnet.train.predictor import Found, Predictor
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import train
from tests.data.test_array_sets import write_fashion
from tests.dense_models import MASK_WORDS, NARROW, SIDE, coco_folder, mask_folder

COMMON = ["workers=0", "batch_size=2", "iters=1", "model=test_swin"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, "boxes" and "pixels", whose data are gone, and a folder of images, one of them unreadable."""
    root = tmp_path_factory.mktemp("predict")
    coco, masks = coco_folder(root / "coco"), mask_folder(root / "masks")
    own = [
        f"data.root={coco}",
        f"data.img_size={SIDE}",
        "data.max_size=96",
        "detect.score=0.0",
        f"out={root / 'boxes'}",
    ]
    train(customise(get_recipe("object_folder"), [*COMMON, *NARROW, *own]))
    train(customise(get_recipe("mask_folder"), [*COMMON, *MASK_WORDS, f"data.root={masks}", f"out={root / 'pixels'}"]))
    folder = root / "images"
    folder.mkdir()
    for number, size in enumerate(((50, 40), (80, 64))):
        pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.jpg").write_bytes(b"not an image")
    for name in ("coco", "masks"):
        (root / name).rename(root / f"{name}-gone")
    return root


def predict(root: Path, run: str, out: Path, *words: str) -> dict[str, Any]:
    assert main(["predict", str(root / run), str(root / "images"), "--out", str(out), *words]) == 0
    return json.loads((out / "predictions.json").read_text())


def test_a_detector_annotates_a_folder(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = predict(root, "boxes", tmp_path, "--score", "0")
    assert found["classes"] == ["tall", "wide"]
    assert [Path(entry["file"]).name for entry in found["pictures"]] == ["0.png", "1.png"]
    first = found["pictures"][0]
    assert (first["width"], first["height"], found["unreadable"]) == (50, 40, 1)
    assert {entry["class"] for entry in first["objects"]} <= {"tall", "wide"}
    assert all(entry["mask"]["size"] == [40, 50] for entry in first["objects"])
    with Image.open(tmp_path / first["annotated"]) as annotated:
        assert annotated.size == (50, 40)
    said = capsys.readouterr()
    assert "2 images" in said.out
    assert "broken.jpg" in said.err


@pytest.mark.parametrize(("run", "task"), [("boxes", "detection"), ("pixels", "segmentation")])
def test_info_and_export_of_a_run_of_a_dense_task(
    root: Path, run: str, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(root / run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["plan"], found["blocks"], found["input_size"]) == ("6x2; 12x1; 24x2; 48x2", 7, None)
    assert main(["info", str(root / run)]) == 0
    assert "Blocks and layers are those of the backbone" in capsys.readouterr().out
    assert main(["info", str(root / run / "weights.safetensors")]) == 2
    assert f"the file of a {task} model around test_swin does not describe the whole model" in capsys.readouterr().err
    assert main(["export", str(root / run)]) == 2
    assert f"is a run of {task}; only classifiers and language models are exported" in capsys.readouterr().err


def test_a_score_leaves_out_what_is_below(root: Path, tmp_path: Path) -> None:
    assert all(not entry["objects"] for entry in predict(root, "boxes", tmp_path, "--score", "1")["pictures"])


def test_a_segmenter_names_every_pixel(root: Path, tmp_path: Path) -> None:
    found = predict(root, "pixels", tmp_path)
    for entry in found["pictures"]:
        assert sum(entry["shares"].values()) == pytest.approx(1.0, abs=1e-3)
        assert set(entry["shares"]) <= {"background", "tall"}
        with Image.open(tmp_path / entry["mask"]) as labels:
            assert labels.size == (entry["width"], entry["height"])
            assert set(np.unique(np.asarray(labels))) <= {0, 1}


def test_json_is_printed_on_request(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(root, "pixels", tmp_path, "--json")
    assert json.loads(capsys.readouterr().out)["classes"] == ["background", "tall"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["boxes", "nowhere.png"], "There is no image or folder nowhere.png"),
        (["none", "images"], "There is no run in"),
        (["boxes/weights.safetensors", "images"], "weights.safetensors is a file of weights"),
        (["boxes", "images", "--score", "2"], "--score is 2.0, but must be between 0 and 1"),
        (["boxes", "images", "--ema"], "it was trained with optim.ema=0"),
        (["boxes", "empty"], "empty has no images"),
    ],
)
def test_usage_errors_are_one_sentence(
    root: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "empty").mkdir(exist_ok=True)
    monkeypatch.chdir(root)
    assert main(["predict", *words, "--out", "unused"]) == 2
    assert sentence in capsys.readouterr().err


def test_findings_are_written_in_coco_s_format(root: Path, tmp_path: Path) -> None:
    data = root / "coco-gone"
    assert main(["eval", str(root / "boxes"), f"data.root={data}", "--results", str(tmp_path / "found.json")]) == 0
    entries = json.loads((tmp_path / "found.json").read_text())
    assert entries
    assert {entry["category_id"] for entry in entries} <= {3, 7}
    assert {entry["image_id"] for entry in entries} <= {6, 7, 8}


def test_only_detection_has_findings(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "eval",
        str(root / "pixels"),
        f"data.root={root / 'masks-gone'}",
        "--results",
        str(tmp_path / "found.json"),
    ]
    assert main(words) == 2
    assert "--results is for runs of detection" in capsys.readouterr().err


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run "digits" and images of handwritten digits, named by class."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("classifier")
    words = ["model=test_deit", "epochs=3", "workers=0", "eval.every=0", f"out={folder / 'digits'}"]
    train(customise(get_recipe("digits"), words))
    (folder / "images").mkdir()
    digits = load_digits()
    for number in range(8):
        pixels = (digits.images[number] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{digits.target[number]}.png")
    return folder


def test_a_classifier_names_images(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "named"
    assert (
        main(["predict", str(classifier / "digits"), str(classifier / "images"), "--top", "3", "--out", str(out)]) == 0
    )
    said = capsys.readouterr().out
    found = json.loads((out / "predictions.json").read_text())
    assert found["classes"] == [str(number) for number in range(10)]
    assert [len(entry["top"]) for entry in found["pictures"]] == [3] * 8
    for entry in found["pictures"]:
        probabilities = [best["probability"] for best in entry["top"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) <= 1 + 1e-5
    with (out / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 24
    assert lines[0]["class"] == found["pictures"][0]["top"][0]["class"]
    assert "8 images" in said
    assert f"{found['pictures'][0]['top'][0]['probability']:.1%}" in said
    page = (out / "gallery.html").read_text()
    assert page.count("<figure>") == 8
    assert page.count("data:image/jpeg;base64,") == 8


def check_classified_as_in_validation(run: Path, pixels: np.ndarray[Any, Any]) -> None:
    """The classifier gives image 3 of the validation data, `pixels`, the probabilities that validation computes."""
    predictor, task = Predictor(run), task_of(read_config(run))
    batch = task.collate([task.valid[0, 3]])
    with torch.no_grad():
        expected = predictor.model(batch["image"])[0].softmax(0)
    found = dict(predictor.classify(Image.fromarray(pixels).convert("RGB"), 10))
    assert [found[name] for name in predictor.classes] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_classifier_predicts_what_validation_computes(classifier: Path) -> None:
    task = task_of(read_config(classifier / "digits"))
    check_classified_as_in_validation(classifier / "digits", task.valid.source.read(3)[..., 0])  # type: ignore[attr-defined]


def test_fashion_mnist_is_padded_as_in_training(tmp_path: Path) -> None:
    pixels = write_fashion(tmp_path / "data", packed=False)
    words = ["model=test_deit", "iters=1", "batch_size=4", "workers=0", "eval.every=0", f"out={tmp_path / 'run'}"]
    train(customise(get_recipe("fashion_mnist"), [*words, f"data.root={tmp_path / 'data'}"]))
    check_classified_as_in_validation(tmp_path / "run", pixels[3])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--score", "0.5"], "--score is for runs of detection"),
        (["--top", "0"], "--top: '0' is not a whole number from 1"),
        (["--ema"], "optim.ema=0"),
    ],
)
def test_options_of_other_tasks_are_refused(
    classifier: Path, tmp_path: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["predict", str(classifier / "digits"), str(classifier / "images"), "--out", str(tmp_path / "unused")]
    assert main([*run, *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "unused").exists()


def test_a_gallery_shows_the_annotated_images(root: Path, tmp_path: Path) -> None:
    predict(root, "boxes", tmp_path, "--score", "0")
    page = (tmp_path / "gallery.html").read_text()
    assert page.count("<figure>") == 2
    assert "objects" in page


def test_results_of_images_with_the_same_name_are_numbered() -> None:
    assert unique_stems([Path("a/x.png"), Path("b/x.jpg"), Path("y.png"), Path("c/x.png")]) == ["x", "x_2", "y", "x_3"]


def test_no_result_replaces_that_of_another_image() -> None:
    """A segmenter writes NAME.png and NAME_classes.png."""
    numbered = [Path("a/x.png"), Path("b/x.png"), Path("b/x_2.png"), Path("b/x_classes.png")]
    assert unique_stems(numbered) == ["x", "x_2", "x_2_2", "x_classes_2"]


def test_images_of_one_name_are_shown_with_their_folders() -> None:
    assert shown_names([Path("in/a/1.png"), Path("in/b/1.png")]) == ["a/1.png", "b/1.png"]
    assert shown_names([Path("in/a/1.png"), Path("in/b/2.png")]) == ["1.png", "2.png"]


def test_masks_tint_and_boxes_frame_the_image() -> None:
    image, mask = Image.new("RGB", (60, 60), "white"), np.zeros((60, 60), dtype=bool)
    mask[20:40, 20:40] = True
    drawn = np.asarray(draw_objects(image, [Found("thing", 0, 0.9, (15.0, 15.0, 30.0, 30.0), mask)]))
    assert tuple(drawn[15, 40]) == colour(0)
    assert tuple(drawn[30, 30]) != (255, 255, 255)
    assert tuple(drawn[55, 55]) == (255, 255, 255)
    assert np.asarray(image).min() == 255  # the original stays as it was


def test_predictions_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save("black.png")
    assert main(["predict", "black.png"]) == 0
    first = Path("predictions/predictions.json").stat().st_mtime_ns
    assert main(["predict", "black.png"]) == 0
    assert "See predictions-2/gallery.html." in capsys.readouterr().out
    assert main(["predict", "black.png", "--out", "predictions"]) == 2
    assert "predictions is not an empty folder; give another --out." in capsys.readouterr().err
    assert Path("predictions/predictions.json").stat().st_mtime_ns == first


def test_a_long_file_name_is_shortened_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(f"{'a' * 90}.png")
    assert main(["predict", f"{'a' * 90}.png"]) == 0
    table = capsys.readouterr().out
    assert "a…a" in table
    assert "probability" in table
    assert max(map(len, table.splitlines())) <= 80
