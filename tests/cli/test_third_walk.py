"""What a third walk through all commands found: late refusals, silent overwriting, values that mean nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepsnet.cli import console
from stepsnet.cli.main import COMMANDS, load, main, parser_of
from stepsnet.dense.results import average_precision
from stepsnet.optional import require
from stepsnet.planner import PlanResult
from stepsnet.planner.planning import Row


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


@pytest.mark.parametrize("name", [name for group in COMMANDS.values() for name in group])
def test_no_option_can_be_abbreviated(name: str) -> None:
    parser = parser_of(name, load(name))
    options = [option for action in parser._actions for option in action.option_strings if len(option) > 5]
    for option in options:
        assert option[:-1] in options or parser._get_option_tuples(option[:-1]) == []


def test_an_unwritable_file_is_refused_before_the_evaluation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text('{"task": "detection"}')
    monkeypatch.setattr("stepsnet.train.evaluate.evaluate_run", lambda *_, **__: pytest.fail("it was evaluated"))
    assert main(["eval", "run", "--results", "/proc/x"]) == 2
    assert "Cannot read or write /proc/x" in capsys.readouterr().err


def test_an_unknown_join_is_answered_with_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=test_steps_deit", "join=nope", "--dry-run"]) == 2
    assert capsys.readouterr().err.rstrip(".\n").endswith("gain, gain_matched")


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


def test_a_dry_run_shows_values_as_the_command_line_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=test_deit", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [
        line for line in ("compile = false", "optim.betas = 0.9,0.999", "data.root = empty") if line not in lines
    ] == []


def test_a_chart_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "gamma", "test_deit", "--plot", "gamma.svg"]) == 0
    assert capsys.readouterr().out.endswith("\nChart: gamma.svg\n")


def test_predictions_are_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    require("PIL.Image", extra="vision").fromarray(np.zeros((32, 32, 3), np.uint8)).save("black.png")
    assert main(["predict", "black.png"]) == 0
    first = Path("predictions/predictions.json").stat().st_mtime_ns
    assert main(["predict", "black.png"]) == 0
    assert "See predictions-2/gallery.html." in capsys.readouterr().out
    assert main(["predict", "black.png", "--out", "predictions"]) == 2
    assert "predictions is not an empty folder; give another --out." in capsys.readouterr().err
    assert Path("predictions/predictions.json").stat().st_mtime_ns == first


@pytest.mark.parametrize("score", [0.9, None])
def test_sizes_without_objects_have_no_average_precision(score: float | None) -> None:
    box = [2.0, 2.0, 10.0, 10.0]  # a small one
    truth = {
        "images": [{"id": 1, "height": 64, "width": 64}],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 100.0, "iscrowd": 0}],
    }
    results = [] if score is None else [{"image_id": 1, "category_id": 1, "bbox": box, "score": score}]
    expected = 0.0 if score is None else 1.0
    names = ("box_ap", "box_ap50", "box_ap75", "box_ap_small")
    assert average_precision(truth, results, "bbox") == pytest.approx(dict.fromkeys(names, expected), abs=1e-6)


def test_two_points_have_no_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepsnet.research.bench.timing.PEAK_SIZES", (16,))
    assert main(["bench", "depth", "test_deit", "--depths", "2", "4", "--widths", "--rounds", "7", "--batch", "1"]) == 0
    assert "±" not in capsys.readouterr().out


def test_a_plan_that_is_slower_than_its_budget_is_called_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Row("16x4, 32x4", 8, 100, 1000, seconds=0.009, measured=0.0125)
    found = PlanResult("test_deit", chosen.plan, chosen, chosen, (chosen,), "24x8", {"seconds": 0.01}, 1, 8, 10, "none")
    monkeypatch.setattr("stepsnet.surgery.planning.plan", lambda *_, **__: found)
    assert main(["plan", "test_deit", "--latency", "10ms"]) == 0
    assert "It was measured at 12.50 ms, more than the budget of 10 ms" in capsys.readouterr().out


class Waiting:
    """A command without progress of its own."""

    SUMMARY = DESCRIPTION = "waits"

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait

    def add_arguments(self, parser: object) -> None:
        """None."""

    def run(self, args: object) -> int:
        self.wait()
        return 0


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of progress after a moment."""
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.02)


def wait_for(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Standard error until `words` are there."""
    said, end = "", time.monotonic() + 30
    while words not in said and time.monotonic() < end:
        time.sleep(0.01)
        said += capsys.readouterr().err
    return said


@pytest.mark.usefixtures("_soon")
def test_no_command_is_silent_for_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        assert wait_for("passed", capsys).startswith("stepsnet plan 0:0")

    monkeypatch.setattr("stepsnet.cli.main.load", lambda _: Waiting(wait))
    assert main(["plan"]) == 0


@pytest.mark.usefixtures("_soon")
def test_of_two_bars_the_newest_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("outer"), console.progress("inner"):
        assert wait_for("passed", capsys).startswith("inner 0:0")


@pytest.mark.usefixtures("_soon")
def test_a_text_printed_in_pieces_is_not_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def print_pieces() -> None:
        with console.no_lines():
            time.sleep(0.2)

    monkeypatch.setattr("stepsnet.cli.main.load", lambda _: Waiting(print_pieces))
    assert main(["generate"]) == 0
    assert capsys.readouterr().err == ""
