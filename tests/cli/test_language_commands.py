"""From raw text to generated text on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepsnet.cli.main import main
from stepsnet.data.text.vocabulary import ByteVocabulary
from stepsnet.errors import UsageError
from stepsnet.models import create_model, save_model
from stepsnet.runs.folder import create
from stepsnet.train.config import customise
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import resume, train
from stepsnet.train.typed import to_dict

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 60
TINY = [
    "model=test_steps_transformer",
    "plan=none",
    "model_args.embed_dim=32",
    "iters=2",
    "batch_size=4",
    "data.seq_len=16",
]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text(TEXT)
    (tmp_path / "book_valid.txt").write_text(TEXT[:900])
    files = [str(tmp_path / "book.txt"), str(tmp_path / "book_valid.txt")]
    assert main(["prepare-text", *files, "--vocab", "290", "--out", str(tmp_path / "tokens"), "--workers", "1"]) == 0
    return tmp_path / "tokens"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_model(create_model("test_steps_transformer"), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_text_is_prepared_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    assert (
        main(
            [
                "prepare-text",
                str(tmp_path / "book.txt"),
                "--vocab",
                "5000",
                "--out",
                str(tmp_path / "out"),
                "--workers",
                "1",
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "too small for 5000 tokens" in said
    assert f"tokens of {len(TEXT):,} bytes, {len(TEXT.split()):,} words, 1 document in " in " ".join(said.split())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "tokenizer.json",
        "train.bin",
    ]


def test_the_manifest_is_printed_as_json(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(prepared.parent / "book.txt"), str(prepared.parent / "book_valid.txt")]
    capsys.readouterr()
    assert main(["prepare-text", *files, "--vocab", "290", "--out", str(prepared), "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((prepared / "manifest.json").read_text())


def test_damage_is_a_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_bytes(b"caf\xe9 au lait")
    assert main(["prepare-text", str(tmp_path / "t.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "t.txt: byte 0xe9 at offset 3 of the text is not UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert (
        main(
            [
                "prepare-text",
                str(tmp_path / "t.txt"),
                "--out",
                str(tmp_path / "out2"),
                "--errors",
                "replace",
                "--workers",
                "1",
            ]
        )
        == 0
    )
    assert "t.txt: byte 0xe9 at offset 3" in capsys.readouterr().err


def test_a_run_on_prepared_text_generates_with_its_own_tokenizer(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepared.parent / "run"
    train(customise(get_recipe("wikitext103"), [*TINY, f"data.root={prepared}", f"out={run}"]))
    (prepared / "tokenizer.json").rename(prepared / "other.json")  # the run folder is all it takes
    capsys.readouterr()
    assert main(["generate", str(run), "--prompt", "The quick", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("The quick")
    result = json.loads((run / "result.json").read_text())
    assert {"loss", "bits_per_byte", "perplexity_per_token", "perplexity_per_word"} <= set(result)
    other = (prepared / "other.json").read_text()
    (prepared / "other.json").write_text(other + "\n")
    assert main(["generate", str(run), "--tokenizer", str(prepared / "other.json")]) == 2
    assert "a different tokenizer from the one next to the weights" in capsys.readouterr().err


def test_a_deepened_run_keeps_its_tokenizer(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, deeper = prepared.parent / "run", prepared.parent / "deeper"
    train(customise(get_recipe("wikitext103"), [*TINY, f"data.root={prepared}", f"out={run}"]))
    assert main(["deepen", str(run), "--blocks-added", "16x1", "--out", str(deeper)]) == 0
    capsys.readouterr()
    assert main(["generate", str(deeper / "weights.safetensors"), "--prompt", "The quick", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("The quick")


def test_validation_can_slide_its_window_afterwards(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = prepared.parent / "run"
    train(customise(get_recipe("wikitext103"), [*TINY, f"data.root={prepared}", f"out={run}"]))
    capsys.readouterr()
    losses = []
    for words in (["data.stride=0"], ["data.stride=4"], ["data.valid_windows=1"]):
        assert main(["eval", str(run), *words, "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["metrics"]["loss"])
    assert len(set(losses)) == 3


def test_evaluation_with_another_tokenizer_is_refused(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other, book = (prepared.parent / name for name in ("run", "other", "book.txt"))
    train(customise(get_recipe("wikitext103"), [*TINY, f"data.root={prepared}", f"out={run}"]))
    assert main(["prepare-text", str(book), "--vocab", "280", "--out", str(other), "--workers", "1"]) == 0
    assert main(["eval", str(run), f"data.root={other}"]) == 2
    assert f"{run} was started with a different tokenizer from that of data.root" in capsys.readouterr().err


def test_a_run_does_not_change_its_tokenizer(prepared: Path) -> None:
    run = prepared.parent / "run"
    config = customise(get_recipe("wikitext103"), [*TINY, f"data.root={prepared}", f"out={run}"])
    run.mkdir()
    (run / "tokenizer.json").write_text((prepared / "tokenizer.json").read_text() + "\n")
    create(run, to_dict(config))
    with pytest.raises(UsageError, match="was started with a different tokenizer"):
        resume(run)


def test_several_prompts_are_one_batch(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        str(weights),
        "--prompt",
        "a",
        "--prompt",
        "much longer",
        "--prompt",
        "",
        "--tokens",
        "4",
        "--seed",
        "3",
        "--json",
    ]
    assert main(words) == 0
    texts = json.loads(capsys.readouterr().out)
    assert [text["prompt"] for text in texts] == ["a", "much longer", ""]
    assert {text["finished"] for text in texts} == {"length"}


def test_text_is_printed_while_it_is_generated(
    weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepsnet.tasks import generation

    def pieces(*_: object, **__: object) -> Iterator[generation.Emission]:
        for text in ("one ", "two"):
            yield generation.Emission(0, text, None)
            assert capsys.readouterr().out.endswith(text)  # it was shown before the next one was asked for

    monkeypatch.setattr(generation, "generate", pieces)
    assert main(["generate", str(weights), "--prompt", "Hello"]) == 0


def test_a_prompt_longer_than_the_context_is_reported(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(weights), "--prompt", "x" * 40, "--tokens", "1"]) == 0
    assert "The prompt has 40 tokens; the model sees the last 32 of them" in capsys.readouterr().err
    assert main(["generate", str(weights), "--prompt", "x" * 40, "--tokens", "1", "--context", "0"]) == 0
    assert capsys.readouterr().err == ""


def test_a_tokenizer_of_another_size_is_refused(
    prepared: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(weights), "--tokenizer", str(prepared / "tokenizer.json")]) == 2
    assert f"has {len(ByteVocabulary.pieces)} tokens, but the tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "There is no run in nowhere"),
        (["."], "There is no run in ."),
        (["weights.safetensors", "--context", "-1"], "--context: '-1' is not a whole number from 0"),
        (["weights.safetensors", "--top-p", "2"], "top-p is 2"),
        (["image.safetensors"], "takes language models of this package only"),
    ],
)
def test_usage_errors_are_one_sentence(
    weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(weights.parent)
    save_model(create_model("test_deit"), "image.safetensors")
    assert main(["generate", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_an_unfinished_run_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(tmp_path, to_dict(get_recipe("python_docs")))
    assert main(["generate", str(tmp_path)]) == 2
    assert "stepsnet resume" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--vocab", "--sample-mb"])
def test_a_given_tokenizer_is_not_trained(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["book.txt", "--tokenizer", "tokenizer.json", option, "300", "--out", str(tmp_path / "tokens")]
    assert main(["prepare-text", *words]) == 2
    assert f"{option} is for training a tokenizer" in capsys.readouterr().err
