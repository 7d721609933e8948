"""Options that would have no effect are refused, and numbers of any size get one sentence instead of a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from stepsnet import units
from stepsnet.cli.main import COMMANDS, load, main, parser_of
from stepsnet.models import create_model, save_model
from stepsnet.train.config import customise
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import train
from tests.dense_models import MASK_WORDS, mask_folder

Refused: TypeAlias = Callable[[list[str]], str]

HUGE = str(10**18)
DRY = ["train", "digits", "model=test_deit", "--dry-run"]
TEXT = ["train", "language", "data.root=book.txt", "--dry-run"]
MASKS = ["train", "mask_folder", "model=test_swin", "data.root=masks", *MASK_WORDS, "--dry-run"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, a text and a file of a language model's weights."""
    root = tmp_path_factory.mktemp("options")
    words = ["model=test_steps_deit", "iters=1", "batch_size=16", "workers=0", f"out={root / 'run'}"]
    train(customise(get_recipe("digits"), words))
    (root / "book.txt").write_text("It was a dark and stormy night.\n" * 50)
    mask_folder(root / "masks")
    save_model(create_model("test_transformer"), root / "weights.safetensors")
    return root


@pytest.fixture
def refused(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command in that folder, which must exit with 2 and print an error only; returns the error."""
    monkeypatch.chdir(place)

    def run(words: list[str]) -> str:
        assert main(words) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["info", "test_deit", "--join", "matched_grad"], "--join has no effect: the plan 32x4 has one step per stage"),
        (["info", "test_steps_deit", "--plan", "1", "--macro", "reverse"], "--macro has no effect"),
        ([*DRY, "join=matched_grad"], "join=matched_grad has no effect: the plan 32x4 has one step per stage"),
        (["train", "digits", "model=test_deit", "iters=1", "macro=reverse", "out=new"], "macro=reverse has no effect"),
        ([*DRY, "optim.momentum=0.5"], "optim.momentum has no effect with optim.name=adamw"),
        ([*DRY, "schedule.power=2"], "it is for schedule.kind=poly"),
        ([*DRY, "model_args.num_classes=5"], "model_args.num_classes cannot be given: num_classes is set by the data"),
        ([*DRY, 'model_args={"num_classes": 5}'], "model_args.num_classes cannot be given"),
        ([*DRY, "model_args.plan=2"], "model_args.plan cannot be given: plan is set by plan="),
        ([*DRY, "model_args.img_size=64"], "model_args.img_size cannot be given: img_size is set by data.img_size="),
        ([*DRY, "compile_backend=eager"], "compile_backend has no effect with compile=false"),
        ([*DRY, "--track", "wandb"], "--track has no effect with --dry-run"),
        ([*TEXT, "data.valid=book.txt", "data.valid_fraction=0.2"],
         "data.valid_fraction has no effect because the validation data are in book.txt"),
        ([*TEXT, "data.pattern=*.txt"], "data.pattern has no effect because book.txt is one file, not a folder"),
        ([*MASKS, "data.valid_fraction=0.2"],
         "data.valid_fraction has no effect because the validation data are in masks/val.txt"),
        ([*MASKS, "backbone.frozen_norm=true"],
         "backbone.frozen_norm=true has no effect: test_swin has no batch norms"),
        (["train", "--dry-run"], "--dry-run needs a recipe"),
        (["train", "digits", "--keys", "--dry-run"], "--dry-run has no effect with --keys"),
        (["resume", "run", "--track", "mlflow"], "--track has no effect: run has finished"),
        (["stepify", "timm:test_vit", "--plan", "1", "--join", "plain", "--out", "new"], "--join has no effect"),
        (["stepify", "timm:test_vit", "--plan", "1", "--heads", "keep_dim", "--out", "new"], "--heads has no effect"),
        (
            ["deepen", "weights.safetensors", "--blocks-added", "48x2", "--heads", "keep_dim", "--out", "new"],
            "--heads is for models of timm and transformers",
        ),
        (["analyze", "drops", "run", "--seed", "0"], "--seed has no effect on drops"),
        (["analyze", "paths", "run", "--seed", "1"], "--seed has no effect on paths"),
        (["analyze", "gamma", "run", "--seed", "1"], "--seed is for random inputs; run is measured on"),
        (["analyze", "width", "test_deit", "--start", "0"], "--start is for gamma"),
        (["doctor", "run", "--seed", "0"], "--seed has no effect on run"),
        (["study", "--size", "quick"], "--size needs the name of a study"),
        (["study", "--workers", "2"], "--workers needs the name of a study"),
        (["study", "--list", "joins"], "leave out joins or --list"),
        (["study", "fixed_width", "--size", "full", "--data", "cifar10=run", "--data", "cifar10=masks"], "given twice"),
        (["study", "fixed_width", "--size", "full", "--data", "cifar10="], "is not of the form KEY=PATH"),
        (["study", "steps", "--report", "--dry-run"], "--report has no effect with --dry-run"),
        (["prepare-text", "book.txt", "--column", "text", "--out", "new"], "--column is for data sets"),
        (["prepare-text", "book.txt", "--leave-out", "book.txt:9000-9001", "--vocab", "300", "--out", "tokens"],
         "--leave-out book.txt:9000-9001 has no effect: the file has 1600 characters"),
        (["generate", "--temperature", "0", "--top-k", "3"], "--top-k has no effect with --temperature 0"),
        (["generate", "--temperature", "0", "--seed", "0"], "--seed has no effect with --temperature 0"),
        (["generate", "weights.safetensors", "--ema"], "--ema is for runs"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_an_option_without_effect_is_refused(words: list[str], sentence: str, refused: Refused, place: Path) -> None:
    assert sentence in refused(words)
    assert not (place / "new").exists()


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_folder_in_use_is_refused_before_the_data_are_read(dry: list[str], refused: Refused) -> None:
    assert "run holds a finished run" in refused(["train", "image_folder", "data.root=nowhere", "out=run", *dry])


def test_a_dry_run_shows_the_learning_rate_that_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DRY, "lr=0.01", "schedule.warmup_iters=100", "schedule.start=0", "iters=11"]) == 0
    assert "highest learning rate 0.001, because the warm-up has 100 steps" in capsys.readouterr().out
    assert main([*DRY, "lr=0.01", "schedule.warmup_iters=10", "iters=11"]) == 0
    assert "highest learning rate 0.01\n" in capsys.readouterr().out


def test_a_dry_run_shows_only_keys_that_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(DRY) == 0
    keys = {line.partition(" = ")[0] for line in capsys.readouterr().out.splitlines()}
    assert {"plan", "optim.betas", "schedule.end", "data.img_size"} <= keys
    assert not keys & {"join", "macro", "optim.momentum", "schedule.power", "data.valid_fraction", "detect.heads"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["analyze", "gamma", "test_deit", "--batch", HUGE], "from 1 to 2,147,483,647"),
        (["plan", "test_deit", "--latency", f"10ms@batch{HUGE}"], "not enough memory"),
        (["bench", "speed", "test_deit", "--threads", HUGE], "from 1 to 1,024"),
        (["prepare-text", "book.txt", "--vocab", HUGE, "--out", "new"], "from 257 to 1,048,576"),
        (["prepare-text", "book.txt", "--workers", HUGE, "--out", "new"], "from 1 to 1,024"),
        (["export", "test_steps_deit", "--image-size", "99999999"], "the largest side is 65,536 pixels"),
        ([*DRY, "workers=1000000000"], "workers is 1000000000, but must be from 0 to 1024"),
        ([*DRY, "model_args.depth=1000000000"], "the most are 1,048,576 channels and 100,000 blocks"),
        ([*DRY, "model_args.embed_dim=1000000000"], "the most are 1,048,576 channels"),
        ([*DRY, "model_args.depth=nan"], "depth is 'nan', but must be a whole number of at least 0"),
        ([*MASKS, "model_args.img_size=inf"], "img_size is 'inf', but must be a number of pixels or two"),
        ([*DRY, "model_args.patch_size=0"], "patch_size is 0, but must be a whole number of at least 1"),
        ([*DRY, "model_args.drop_rate=abc"], "drop_rate is 'abc', but must be a number"),
        (["train", "digits", "--dry-run", "model=test_swin", "model_args.depths=3"],
         "depths is 3, but must be one whole number per stage"),
        (["train", "digits", "--dry-run", "model=test_resnet", "model_args.bottleneck=abc"],
         "bottleneck is 'abc', but must be true or false"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_number_of_any_size_gets_one_sentence(words: list[str], sentence: str, refused: Refused) -> None:
    error = refused(words)
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", [name for names in COMMANDS.values() for name in names])
def test_every_whole_number_of_an_option_has_bounds(name: str) -> None:
    actions = parser_of(name, load(name))._actions
    assert [action.option_strings for action in actions if action.type is int] == []


def test_a_lack_of_memory_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12288000000000 bytes.")

    monkeypatch.setattr("stepsnet.cli.models.describe", fail)
    assert main(["info", "test_deit"]) == 2
    assert "There is not enough memory for 12,288,000.0 MB at once; give a smaller" in capsys.readouterr().err


def test_an_error_that_is_not_about_memory_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("stepsnet.cli.models.describe", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["info", "test_deit"])


def test_the_seed_draws_the_inputs_of_a_stepified_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stepify", "timm:test_vit", "--plan", "2", "--out", str(tmp_path / "stepped")]) == 0
    gammas = []
    for seed in ("0", "0", "1"):
        capsys.readouterr()
        assert main(["analyze", "gamma", str(tmp_path / "stepped"), "--seed", seed, "--json"]) == 0
        gammas.append(json.loads(capsys.readouterr().out)["gamma"])
    assert gammas[0] == gammas[1] != gammas[2]


def test_small_numbers_are_not_printed_as_zero() -> None:
    assert [units.si(count) for count in (4_610_000_000, 5_720_000)] == ["4.61 G", "5.72 M"]
    assert [units.si(count) for count in (57_960, 640)] == ["57.96 k", "640"]
    assert [units.megabytes(count) for count in (12_300_000, 4_100)] == ["12.3 MB", "4.1 kB"]
    assert [units.significant(value) for value in (1234.5, 0.0152)] == ["1,234", "0.0152"]
    assert [units.percent(share) for share in (0.45, 0.00045)] == ["45%", "0.045%"]
    assert [units.milliseconds(seconds) for seconds in (0.152, 0.0000012)] == ["152 ms", "0.0012 ms"]


def test_tables_of_tiny_models_have_no_zero(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["models", "test_*"], ["info", "test_resnet"], ["plan", "test_resnet"]):
        assert main(words) == 0
        assert " 0.0" not in capsys.readouterr().out


def test_counts_of_one_are_singular() -> None:
    assert [units.counted(count, "step") for count in (1, 2, 1234)] == ["1 step", "2 steps", "1,234 steps"]


def test_info_says_which_blocks_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "test_resnet"]) == 0
    assert "8 blocks (4 of them outside of the plan)" in capsys.readouterr().out
    assert main(["info", "test_deit"]) == 0
    assert "\n4 blocks, " in capsys.readouterr().out
    assert main(["plan", "test_resnet"]) == 0
    assert "4 blocks in its plan" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["test_byobnet", "test_efficientnet"])
def test_blocks_that_only_python_can_build(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stepify", f"timm:{name}", "--plan", "2", "--out", str(tmp_path / "stepped")]) == 2
    assert "from Python, give make_block=, a function that builds them (the command line cannot)" in (
        capsys.readouterr().err
    )
