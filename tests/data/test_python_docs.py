from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepsnet.data.config import DataConfig
from stepsnet.data.text import corpora
from stepsnet.data.text.corpora import load_text
from stepsnet.data.text.windows import TextStore
from stepsnet.errors import UsageError

MODULE = '''
"""About the module."""
import nothing_like_this
raise SystemExit("imported!")

class Thing:
    """About the class."""

    def act(self):
        """About the method."""

if True:
    async def later():
        """About the function."""

def bare():
    "Said twice in the library."
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Python whose standard library has a few files and no topics."""
    (tmp_path / "test").mkdir()
    (tmp_path / "mod.py").write_text(MODULE)
    (tmp_path / "other.py").write_text('"Said twice in the library."\n')
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "test/test_x.py").write_text('"Not wanted."\n')
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(corpora, "_topics", lambda: iter([("topic LOOPING", ["About loops."])]))
    corpora._documents.cache_clear()
    yield tmp_path
    corpora._documents.cache_clear()


def test_docstrings_are_read_in_order_without_imports_and_kept_once(library: Path) -> None:
    assert dict(corpora._documents()) == {
        "mod.py": (
            "About the module.\n\nAbout the class.\n\nAbout the method.\n\nAbout the function.\n\n"
            "Said twice in the library.\n\n\n"
        ),
        "topic LOOPING": "About loops.\n\n\n",
    }


def test_a_python_without_sources_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in library.glob("*.py"):
        path.unlink()
    monkeypatch.setattr(corpora, "_topics", lambda: iter([]))
    with pytest.raises(UsageError, match="which this Python does not have"):
        load_text(DataConfig(kind="python_docs"))


def lines(part: TextStore) -> set[str]:
    paragraphs = part.read(0, len(part)).tobytes().decode().split("\n\n\n")
    return {paragraph for paragraph in paragraphs if len(paragraph) > 200}


def test_this_python_has_a_megabyte_split_without_overlap() -> None:
    text = load_text(DataConfig(kind="python_docs"))
    assert len(text.train) > 1_000_000
    assert 0.05 < len(text.valid) / len(text.train) < 0.2
    assert lines(text.valid)
    assert not lines(text.train) & lines(text.valid)
