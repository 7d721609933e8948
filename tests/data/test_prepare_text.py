from __future__ import annotations

import json
import lzma
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.data.text import prepare as prepare_module
from stepsnet.data.text import sources as sources_module
from stepsnet.data.text.corpora import load_text
from stepsnet.data.text.prepare import Request, UnitSample, prepare
from stepsnet.data.text.sources import Piece, Unit, find_sources
from stepsnet.data.text.tokens import Manifest, open_part, read_manifest
from stepsnet.data.text.vocabulary import BpeVocabulary
from stepsnet.errors import UsageError


def words(count: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    known = ["".join(draw.choices("etaoins é", k=draw.randint(1, 7))) for _ in range(300)]
    return "".join(draw.choice(known) + draw.choice([" ", ", ", ".\n", "\n\n"]) for _ in range(count))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files, cut into many small units."""
    monkeypatch.setattr(sources_module, "UNIT", 500)
    monkeypatch.setattr(prepare_module, "_SAVE_EVERY", 4)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text(words(2000, 1))
    (tmp_path / "raw" / "b.txt.xz").write_bytes(lzma.compress(words(1500, 2).encode()))
    (tmp_path / "raw" / "books_valid.txt").write_text(words(400, 3))
    return tmp_path


def request(folder: Path, out: str = "out", **changes: Any) -> Request:
    return Request(
        **{
            "out": folder / out,
            "sources": find_sources([str(folder / "raw")]),
            "vocabulary": 400,
            "sample_mb": 1,
            **changes,
        }
    )


def tokens_of(folder: Path, manifest: Manifest, part: str) -> list[int]:
    store = open_part(folder, manifest, part)
    return store.read(0, len(store)).tolist()


def test_tokens_are_those_of_whole_documents_each_with_a_separator(folder: Path) -> None:
    manifest = prepare(request(folder))
    vocabulary = BpeVocabulary.load(folder / "out" / "tokenizer.json")
    expected = [
        token
        for seed, count in ((1, 2000), (2, 1500))
        for token in (*vocabulary.encode(words(count, seed)), vocabulary.separator)
    ]
    assert tokens_of(folder / "out", manifest, "train") == expected
    assert vocabulary.decode(tokens_of(folder / "out", manifest, "valid")) == words(400, 3).encode()


def test_the_manifest_counts_and_hashes(folder: Path) -> None:
    import hashlib

    manifest = prepare(request(folder))
    part, text = manifest.parts["valid"], words(400, 3).encode()
    assert (part.bytes, part.words, part.documents, part.sha256) == (
        len(text),
        len(text.split()),
        1,
        hashlib.sha256(text).hexdigest(),
    )
    assert manifest.sources == {"train": ["a.txt", "b.txt.xz"], "valid": ["books_valid.txt"]}
    assert (manifest.dtype, manifest.vocabulary) == ("uint16", 400)
    assert manifest == read_manifest(folder / "out")


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_several_processes_write_the_same_files(folder: Path) -> None:
    prepare(request(folder, "one"))
    prepare(request(folder, "two", workers=2))
    assert content(folder / "one") == content(folder / "two")


class StopError(Exception):
    pass


@contextmanager
def stopping(after: int) -> Iterator[Any]:
    """A progress bar that raises an error after some units of encoding."""

    class Bar:
        def __init__(self, left: float) -> None:
            self.left = left

        def advance(self, amount: float = 1, /) -> None:
            self.left -= 1
            if self.left < 0:
                raise StopError

    @contextmanager
    def watch(description: str, total: float | None) -> Iterator[Bar]:
        yield Bar(after if description == "encoding" else float("inf"))

    yield watch


@pytest.mark.parametrize("after", [0, 1, 4, 5, 17, 37])
def test_an_interrupted_preparation_continues_to_the_same_files(folder: Path, after: int) -> None:
    prepare(request(folder, "whole"))
    with stopping(after) as watch, pytest.raises(StopError):
        prepare(request(folder), watch)
    assert (folder / "out" / "preparation.json").is_file()
    with stopping(after + 3) as watch, pytest.raises(StopError):  # stopped again, a little later
        prepare(request(folder), watch)
    prepare(request(folder))
    assert content(folder / "out") == content(folder / "whole")


def lives(pid: str) -> bool:
    """A process that has ended may still be listed as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_preparation_leaves_no_process_and_continues(folder: Path) -> None:
    prepare(request(folder, "whole", workers=2))
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from stepsnet.data.text import prepare, sources\n"
        "sources.UNIT, prepare._SAVE_EVERY = 500, 4\n"
        "class Bar:\n"
        "    def advance(self, amount=1, /):\n"
        "        children = Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()\n"
        "        if (out / 'train.bin').exists() and (out / 'train.bin').stat().st_size > 2000:\n"
        "            print(*children, flush=True)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "def watch(description, total):\n"
        "    return prepare.nullcontext(Bar())\n"
        "if __name__ == '__main__':\n"
        "    raw, out = map(Path, sys.argv[1:])\n"
        "    found = sources.find_sources([str(raw)])\n"
        "    prepare.prepare(prepare.Request(out=out, sources=found, vocabulary=400, sample_mb=1, workers=2), watch)\n"
    )
    (folder / "program.py").write_text(program)
    words = [sys.executable, str(folder / "program.py"), str(folder / "raw"), str(folder / "out")]
    killed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    children = killed.stdout.split()
    assert len(children) >= 2
    deadline = time.monotonic() + 300
    while any(map(lives, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(lives, children))
    prepare(request(folder))
    assert content(folder / "out") == content(folder / "whole")


def test_encoded_units_are_not_encoded_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stopping(40) as watch, pytest.raises(StopError):
        prepare(request(folder), watch)
    encoded: list[Unit] = []
    encode = prepare_module.UnitEncoder.__call__

    def counted(self: prepare_module.UnitEncoder, unit: Unit) -> Any:
        encoded.append(unit)
        return encode(self, unit)

    monkeypatch.setattr(prepare_module.UnitEncoder, "__call__", counted)
    trained: list[int] = []
    monkeypatch.setattr(prepare_module, "train_bpe", lambda *_: trained.append(1))
    prepare(request(folder))
    done = json.loads((folder / "out" / "manifest.json").read_text())
    assert trained == []
    assert 0 < sum(len(piece.text) for unit in encoded for piece in unit) < 0.7 * (done["parts"]["train"]["bytes"])


def test_a_repeated_call_does_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(request(folder))
    monkeypatch.setattr(prepare_module, "units", None)  # nothing may be read
    assert prepare(request(folder)) == first


@pytest.mark.parametrize("finished", [True, False])
def test_other_arguments_do_not_overwrite(folder: Path, finished: bool) -> None:
    if finished:
        prepare(request(folder))
    else:
        with stopping(5) as watch, pytest.raises(StopError):
            prepare(request(folder), watch)
    with pytest.raises(UsageError, match="give another --out"):
        prepare(request(folder, vocabulary=300))


def test_strict_raises_before_anything_is_encoded(folder: Path) -> None:
    (folder / "raw" / "c.txt").write_bytes(b"good \xff bad")
    with pytest.raises(UsageError, match=r"c\.txt: byte 0xff at offset 5 of the text is not UTF-8; --errors replace"):
        prepare(request(folder))
    assert not (folder / "out" / "train.bin").exists()


def test_replace_continues_and_records_the_damage(folder: Path) -> None:
    (folder / "raw" / "c.txt").write_bytes(b"good \xff bad")
    packed = lzma.compress(words(4000, 5).encode())
    (folder / "raw" / "d.txt.xz").write_bytes(packed[: len(packed) - 40])
    manifest = prepare(request(folder, errors="replace"))
    assert [sentence.partition(":")[0] for sentence in manifest.parts["train"].damage] == ["c.txt", "d.txt.xz"]
    vocabulary = BpeVocabulary.load(folder / "out" / "tokenizer.json")
    assert "good � bad".encode() in vocabulary.decode(tokens_of(folder / "out", manifest, "train"))


def test_a_given_tokenizer_is_used(folder: Path) -> None:
    first = prepare(request(folder))
    second = prepare(request(folder, "other", tokenizer=folder / "out" / "tokenizer.json", errors="replace"))
    assert first.tokenizer_sha256 == second.tokenizer_sha256


def test_many_tokens_need_four_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = prepare(request(folder))
    monkeypatch.setattr(prepare_module, "SHORT_LIMIT", 300)
    large = prepare(request(folder, "large"))
    assert (small.dtype, large.dtype) == ("uint16", "uint32")
    assert tokens_of(folder / "out", small, "train") == tokens_of(folder / "large", large, "train")


def test_the_sample_is_bounded_and_uniform() -> None:
    sample = UnitSample(10 * sources_module.UNIT)
    for number in range(1000):
        sample.add([Piece(str(number), True)])
    drawn = sorted(int(text) for text in sample.texts())
    assert len(drawn) == 10
    assert drawn[0] < 300
    assert drawn[-1] > 700


def load(folder: Path, **changes: Any) -> Any:
    return load_text(DataConfig(kind="tokens", root=str(folder / "out"), seq_len=16, **changes))


def test_training_reads_prepared_text(folder: Path) -> None:
    manifest = prepare(request(folder))
    text = load(folder)
    assert (len(text.train), len(text.valid)) == (manifest.parts["train"].tokens, manifest.parts["valid"].tokens)
    assert len(text.vocabulary.pieces) == 400


def test_validation_on_the_training_part_is_refused(folder: Path) -> None:
    prepare(request(folder))
    with pytest.raises(UsageError, match=r"data\.valid is 'train'"):
        load(folder, valid="train")


def test_without_a_validation_part_the_end_of_train_is_used(folder: Path) -> None:
    (folder / "raw" / "books_valid.txt").unlink()
    total = prepare(request(folder)).parts["train"].tokens
    text = load(folder, valid_fraction=0.25)
    assert len(text.train) + len(text.valid) == total
    assert len(text.valid) == round(0.25 * total)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda out: (out / "train.bin").write_bytes(b"xx"), r"train\.bin has 2 bytes instead of the \d+"),
        (lambda out: (out / "train.bin").unlink(), r"train\.bin has 0 bytes"),
        (lambda out: (out / "manifest.json").write_text("{}"), r"manifest\.json is damaged"),
        (lambda out: (out / "manifest.json").unlink(), "is not a prepared text"),
        (lambda out: (out / "manifest.json").write_text('{"format": 99}'), "from a newer stepsnet"),
        (
            lambda out: (out / "tokenizer.json").write_text((out / "tokenizer.json").read_text() + " "),
            "is not the tokenizer of the tokens",
        ),
        (lambda out: (out / "tokenizer.json").unlink(), "there is no tokenizer"),
    ],
)
def test_a_damaged_folder_is_refused(folder: Path, damage: Any, sentence: str) -> None:
    prepare(request(folder))
    damage(folder / "out")
    with pytest.raises(UsageError, match=sentence):
        load(folder)


@pytest.mark.parametrize("root", ["", "nowhere"])
def test_a_missing_folder_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="prepare-text"):
        load_text(DataConfig(kind="tokens", root=root))


def test_text_files_of_a_prepared_folder_are_not_read_as_bytes(folder: Path) -> None:
    """`train language data.root=FOLDER` takes the tokens of a prepared folder, not the bytes of its files."""
    prepare(request(folder))
    text = load_text(DataConfig(kind="text", root=str(folder / "out"), seq_len=4))
    assert text.vocabulary.unit == "tokens"
    assert len(text.train) == read_manifest(folder / "out").parts["train"].tokens


def test_an_unfinished_preparation_is_refused_as_text(folder: Path) -> None:
    prepare(request(folder))
    (folder / "out" / "manifest.json").rename(folder / "out" / "preparation.json")
    with pytest.raises(UsageError, match="is an unfinished preparation"):
        load_text(DataConfig(kind="text", root=str(folder / "out"), seq_len=4))


def test_a_prepared_folder_as_validation_of_text_files_is_refused(folder: Path) -> None:
    prepare(request(folder))
    with pytest.raises(UsageError, match=r"is a prepared text, but data\.root="):
        load_text(DataConfig(kind="text", root=str(folder / "raw" / "a.txt"), valid=str(folder / "out"), seq_len=4))


def test_another_manifest_does_not_make_a_prepared_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "my books"}')
    (tmp_path / "a.txt").write_text("some text " * 20)
    assert load_text(DataConfig(kind="text", root=str(tmp_path), seq_len=4)).vocabulary.unit == "bytes"
