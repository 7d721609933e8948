"""What a new user meets: bad input is refused in one sentence, nothing is ignored, long work shows progress."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from stepsnet.cli import console
from stepsnet.cli.main import main
from stepsnet.errors import nearest
from stepsnet.tasks import TASKS
from stepsnet.train.config import TrainConfig, tasks_of
from stepsnet.train.typed import reference
from tests.cli.test_train import act_at_step_2

QUICK = ["model=test_deit", "batch_size=64", "eval.every=0", "eval.batch_size=360"]
TOO_LARGE = str(2**70)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one file and one folder of a text."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("a file\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["train", "digits", *QUICK, "iters=1", "out=/proc/x"], ["/proc/x"]),
        (["train", "digits", *QUICK, "iters=1", "out=/proc/x", "--dry-run"], ["/proc/x"]),
        (["train", "digits", *QUICK, "iters=1", "out=file/run"], ["file/run"]),
        (["demo", "--out", "/proc/x"], ["/proc/x"]),
        (["demo", "--out", "file/demo"], ["file/demo: file is a file"]),
        (["prepare-text", "file", "--vocab", "300", "--out", "file/tokens"], ["file/tokens: file is a file"]),
        (["bench", "speed", "test_deit", "--out", "file/bench"], ["file/bench: file is a file"]),
        (["train", "digits", f"seed={TOO_LARGE}"], ["seed is", "64 bits"]),
        (["demo", "--seed", TOO_LARGE], ["--seed", "2^63"]),
        (["doctor", "test_deit", "--seed", TOO_LARGE], ["--seed", "2^63"]),
        (["info", "deit_small", "--plan", "1000000"], ["1000000 steps", "384"]),
        (["info", "timm:resnet18"], ["another library", "a registered name, a run, a saved file"]),
        (["train", "digits", *QUICK, "compile=true", "compile_backend=eagr"], ["no backend 'eagr'", "nearest: eager"]),
        (["analyze", "gamma", "test_deit", "--plot", "/proc/x.svg"], ["Cannot read or write /proc/x.svg:"]),
        (["train", "cifar10", "data.root=file"], ["cannot be read as an .npz file: it is not a zip archive."]),
        (["study", "steps", "--dry-run", "--data", "gutenberg=file"], ["--data has no effect with --dry-run"]),
        (["study", "steps", "--report", "--only", "*-s0"], ["--only has no effect with --report"]),
        (["generate", "file", "--tokens", "0"], ["--tokens: '0' is not a whole number from 1"]),
        (["predict", "nowhere", "file"], ["There is no run in nowhere"]),
        (["train", "digits", "iters=abc"], ["iters takes a whole number or none, not 'abc'."]),
        (
            ["train", "digits", "model=transformer_30m"],
            ["takes text", "classification needs a model that takes images"],
        ),
        (["train", "python_docs", "model=deit_tiny"], ["takes images", "language needs a model that takes text"]),
        (
            ["train", "digits", "backbone.weights=none.safetensors"],
            ["no effect on classification", "detection and segmentation"],
        ),
        (["train", "digits", "data.seq_len=3"], ["no effect on classification", "language"]),
        (["train", "python_docs", "augment.mixup=1"], ["no effect on language", "classification"]),
        (["train", "digits", "data.root=file"], ["data.root=file has no effect"]),
        (["train", "digits", "recipe=cifar10"], ["recipe cannot be changed"]),
        (["train", "digits", "iters=2", "iters=3"], ["iters is given 2 times"]),
        (["resume", "run", "workers=1", "workers=2"], ["workers is given 2 times"]),
        (["eval", "run", "workers=1", "workers=2"], ["workers is given 2 times"]),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(
    words: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert [fact for fact in facts if fact not in said.err] == []


@pytest.mark.parametrize(
    ("word", "suggested"),
    [("nope", []), ("deit_smal", ["deit_small"]), ("clip", ["optim.clip"]), ("xyz", [])],
)
def test_only_similar_words_are_suggested(word: str, suggested: list[str]) -> None:
    known = ["swinpp_base", "deit_small", "optim.clip", "workers"]
    assert nearest(word, known) == (f"; nearest: {', '.join(suggested)}" if suggested else "")


def test_a_finished_run_changes_only_in_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "iters=3", "schedule.warmup_epochs=0", "out=run"]) == 0
    before = Path("run/config.json").read_bytes()
    for words in (["lr=5"], ["foo=1"], ["workers=1"], ["iters=6", "lr=5"], ["iters=3"], ["iters=2"], ["iters=x"]):
        capsys.readouterr()
        assert main(["resume", "run", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert Path("run/config.json").read_bytes() == before
    assert Path("run/result.json").is_file()
    assert Path("run/weights.safetensors").is_file()


def test_a_finished_run_without_checkpoints_is_not_extended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "schedule.warmup_epochs=0", "iters=3", "out=run"]) == 0
    shutil.rmtree("run/checkpoints")
    before = Path("run/weights.safetensors").read_bytes()
    assert main(["resume", "run", "iters=6"]) == 2
    assert "run has no checkpoint, so it cannot be extended" in capsys.readouterr().err
    assert Path("run/weights.safetensors").read_bytes() == before


def test_a_finished_run_is_extended_by_the_schedule_of_the_new_length(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["train", "digits", *QUICK, "schedule.warmup_epochs=0"]
    assert main([*common, "iters=3", "out=run"]) == 0
    assert main([*common, "iters=6", "out=long"]) == 0
    capsys.readouterr()
    assert main(["resume", "run", "iters=6", "--json"]) == 0
    said = capsys.readouterr()
    rates = {
        run: [json.loads(line)["lr"] for line in Path(run, "metrics.jsonl").read_text().splitlines()]
        for run in ("run", "long")
    }
    assert rates["run"][3:] == rates["long"][3:]
    assert len(rates["run"]) == 6
    assert f"continues with {rates['long'][3]:.3g} (the last was {rates['run'][2]:.3g})" in said.err
    assert "from 3 to 6 steps" in said.err
    assert json.loads(said.out) | {"step": 6, "total_steps": 6, "finished": True} == json.loads(said.out)
    assert json.loads(Path("run/result.json").read_text())["step"] == 6
    assert Path("run/weights.safetensors").is_file()
    assert main(["resume", "run"]) == 0
    assert "Finished after 6 steps" in capsys.readouterr().out


@pytest.mark.parametrize("names", [("cat", "cow"), ("cat", "dog", "cow")], ids=["other classes", "more classes"])
def test_an_extension_that_is_refused_leaves_the_finished_run_as_it_was(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, classes in (("old", ("cat", "dog")), ("new", names)):
        for index, name in enumerate(classes):
            Path(folder, name).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (32, 32), (60 * index, 40 * number, 0)).save(Path(folder, name, f"{number}.png"))
    words = ["model=test_deit", "data.img_size=32", "batch_size=2", "workers=0", "iters=1", "data.root=old", "out=run"]
    assert main(["train", "image_folder", *words]) == 0
    before = {path: path.read_bytes() for path in Path("run").iterdir() if path.suffix in (".json", ".safetensors")}
    capsys.readouterr()
    assert main(["resume", "run", "iters=2", "data.root=new"]) == 2
    assert "was trained on other classes" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


def test_a_stopped_run_continues_with_the_same_data_and_remembers_where_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cat", "dog"):
        for number in range(6):
            Path("first", name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (20 * number, 0, 0)).save(Path("first", name, f"{number}.png"))
    shutil.copytree("first", "fewer")
    Path("fewer/cat/0.png").unlink()
    words = ["model=test_deit", "data.img_size=32", "batch_size=2", "workers=0", "data.root=first", "out=run"]
    with monkeypatch.context() as patch:
        act_at_step_2(patch, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert main(["train", "image_folder", *words, "iters=4"]) == 143
    Path("first").rename("second")
    assert main(["resume", "run", "data.root=fewer"]) == 2
    assert "a run continues with the same data" in capsys.readouterr().err
    assert main(["resume", "run", "data.root=second"]) == 0
    assert main(["eval", "run"]) == 0


def test_help_separates_the_recipes_from_their_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0
    recipes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [line for line in recipes if "  " not in line.strip()] == []


@pytest.mark.parametrize("words", [["runs", "."], ["study", "--list"], ["models"], ["train"], ["--help"]], ids=" ".join)
def test_listing_imports_nothing_heavy(words: list[str]) -> None:
    code = f"""if True:
        import sys
        from stepsnet.cli.main import main
        assert main({words}) == 0
        assert [name for name in ("torch", "numpy", "matplotlib", "sklearn", "pandas") if name in sys.modules] == []
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_without_a_terminal_long_work_prints_progress_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.05)
    with console.progress("counting", 40, "models") as bar:
        bar.advance()
        time.sleep(0.1)
        bar.advance(9, note="deit_tiny")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6
    assert lines[0].startswith("counting 1/40")
    assert lines[-1].startswith("counting 10/40  deit_tiny  ")
    assert "models/s" in lines[-1]
    assert lines[-1].endswith(" left")


def test_work_that_does_not_advance_prints_the_time_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.05)
    with console.progress("tracing", unit="files"):
        time.sleep(0.12)
    assert "tracing 0:00 passed" in capsys.readouterr().err


def test_validation_shows_its_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from stepsnet.tasks.classification import Classification

    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.02)
    evaluate = Classification.evaluate

    def slowly(*arguments: object) -> object:
        time.sleep(0.05)
        return evaluate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Classification, "evaluate", slowly)
    assert (
        main(["train", "digits", "model=test_deit", "batch_size=64", "iters=1", "eval.batch_size=64", "out=run"]) == 0
    )
    assert "validation batch 2/6" in capsys.readouterr().err


def test_every_key_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--keys", "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)
    assert [key["key"] for key in keys if not key["meaning"] or not key["type"] or not key["tasks"]] == []
    lr = next(key for key in keys if key["key"] == "lr")
    assert lr["required"]
    assert lr["tasks"] == list(TASKS)
    clip = next(key for key in keys if key["key"] == "optim.clip")
    assert clip["default"] == 0.0
    assert {key["key"] for key in keys} == {key.name for key in reference(TrainConfig)}


def test_the_keys_of_a_recipe_have_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--keys", "lr=0.5", "--json"]) == 0
    keys = {key["key"]: key for key in json.loads(capsys.readouterr().out)}
    assert keys["lr"]["default"] == 0.5
    assert keys["data.kind"]["default"] == "digits"
    assert "detect.rois" not in keys
    assert "data.seq_len" not in keys


@pytest.mark.parametrize(("recipe", "absent"), [("digits", "detect."), ("python_docs", "augment.")])
def test_a_dry_run_shows_only_keys_that_the_task_uses(
    recipe: str, absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", recipe, "--dry-run"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " = " in line]
    task = next(line.split(" = ")[1] for line in lines if line.startswith("task = "))
    assert len(lines) > 30
    assert not any(line.startswith(absent) for line in lines)
    assert all(task in tasks_of(line.split(" = ")[0]) for line in lines)


def test_info_takes_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "plan=2", "iters=1", "out=run"]) == 0
    assert capsys.readouterr().out.startswith("Finished after 1 step: ")
    assert main(["info", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["input_size"]) == ("run", [1, 32, 32])
    assert main(["info", "run", "--img-size", "64"]) == 2
    assert capsys.readouterr().err == "--img-size is for registered names; run has its own.\n"
    assert main(["eval", "run", "--results", "found.json"]) == 2
    assert "a run of classification, has no detections" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["iters=1", "out=run"], ["--dry-run"]], ids=" ".join)
def test_the_preparation_of_a_run_shows_that_it_works(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepsnet.train import build, trainer

    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.05)
    task_of = build.task_of

    def slowly(config: TrainConfig) -> object:
        time.sleep(0.12)
        return task_of(config)

    monkeypatch.setattr(build, "task_of", slowly)
    monkeypatch.setattr(trainer, "task_of", slowly)
    assert main(["train", "digits", *QUICK, *words]) == 0
    assert "preparing data and model 0:00 passed" in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_drawing_of_a_stack_fits(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["info", "test_steps_deit"]) == 0
    bars = [line for line in capsys.readouterr().out.splitlines() if "blocks" in line and "█" in line]
    assert len(bars) == 3
    assert max(map(len, bars)) <= width
