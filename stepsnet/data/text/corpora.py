"""Readers of text: books of Project Gutenberg, the documentation of the running Python, and `load_text` for any."""

from __future__ import annotations

import ast
import functools
import importlib
import sysconfig
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from stepsnet.data.config import DataConfig, refuse_unused_root
from stepsnet.data.text.tokens import is_prepared, load_tokens
from stepsnet.data.text.windows import Text, TextStore, load_piece, load_text_files
from stepsnet.errors import UsageError

GUTENBERG_FILES = {
    "train": "gutenberg_train.txt.xz",
    "valid": "gutenberg_valid.txt.xz",
    "test": "gutenberg_test.txt.xz",
}
GUTENBERG_OVERLAPS = {"valid": (0, 438856), "test": (146930, 436160)}
"""Characters of the unpacked text that also occur in train: a collection and an anthology, as stated in the data's
README.

10.4 % of the 13-word sequences of valid occur in train; without these characters it is less than 0.1 %.
"""
LEFT_OUT = {
    "site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "encodings", "pydoc_data",
}  # fmt: skip
"""Folders of Python's library that are not read: installed packages, and tests and tables with little documentation."""


def load_gutenberg(config: DataConfig) -> Text:
    """Bytes of train, and of valid (with data.valid=test: of test) without the overlap with train."""
    part = config.valid or "valid"
    if part not in GUTENBERG_OVERLAPS:
        raise UsageError(f"data.valid is {part!r}, but for Gutenberg it must be empty, 'valid' or 'test'.")
    train, valid = load_piece(_gutenberg_file(config, "train")), _without_overlap(config, part)
    return Text(f"gutenberg ({part} without overlap)", TextStore([train]), TextStore([valid]))


def _without_overlap(config: DataConfig, part: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    piece = load_piece(_gutenberg_file(config, part))
    assert isinstance(piece, np.ndarray)
    characters = piece.tobytes().decode()
    start, stop = GUTENBERG_OVERLAPS[part]
    return np.frombuffer((characters[:start] + characters[stop:]).encode(), dtype=np.uint8)


def _gutenberg_file(config: DataConfig, part: str) -> Path:
    path = Path(config.root).expanduser() / GUTENBERG_FILES[part]
    if not config.root or not path.is_file():
        others = " and ".join(name for name in GUTENBERG_FILES.values() if name != path.name)
        raise UsageError(f"data.root={config.root!r} has no {path.name}; it must be a folder with this file, {others}.")
    return path


def load_python_docs(config: DataConfig) -> Text:
    """Docstrings and help topics. A hash of the name chooses which whole modules and topics are for validation.

    Modules are parsed, not imported, so reading has no side effects. The text depends on the version of Python; results
    are comparable within one version only.
    """
    documents = _documents()
    if not documents:
        raise UsageError("python_docs reads the sources of Python's standard library, which this Python does not have.")
    parts: dict[bool, list[str]] = {False: [], True: []}
    for name, text in documents:
        parts[zlib.crc32(name.encode()) < config.valid_fraction * 2**32].append(text)
    train, valid = (TextStore([np.frombuffer("".join(parts[part]).encode(), dtype=np.uint8)]) for part in (False, True))
    return Text("python_docs", train, valid)


@functools.cache
def _documents() -> tuple[tuple[str, str], ...]:
    """(module or topic, text), sorted by name. Repeated strings are kept once, so that the split has no overlap."""
    seen: set[str] = set()
    documents = []
    for name, strings in (*_module_docs(), *_topics()):
        fresh = [text for text in dict.fromkeys(strings) if text not in seen]
        seen.update(fresh)
        if fresh:
            documents.append((name, "\n\n".join(fresh) + "\n\n\n"))
    return tuple(documents)


def _module_docs() -> Iterator[tuple[str, list[str]]]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not LEFT_OUT.intersection(name.parts):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # invalid escapes in the library's sources
                    tree = ast.parse(path.read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue  # a file that cannot be imported either
            yield name.as_posix(), list(_docstrings(tree))


def _docstrings(tree: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Docstring of a module, class or function, then of the definitions inside it, in order."""
    text = ast.get_docstring(tree)
    if text:
        yield text
    waiting: list[ast.stmt] = list(reversed(tree.body))
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(statement)
        elif isinstance(statement, ast.If | ast.Try):
            waiting += reversed([*statement.body, *statement.orelse])


def _topics() -> Iterator[tuple[str, list[str]]]:
    """The pages of `help("LOOPING")` and the like."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        return
    for name in sorted(topics):
        yield f"topic {name}", [topics[name].strip()]


READERS: dict[str, Callable[[DataConfig], Text]] = {
    "text": load_text_files,
    "tokens": load_tokens,
    "gutenberg": load_gutenberg,
    "python_docs": load_python_docs,
}


def load_text(config: DataConfig) -> Text:
    """The text of `config`, checked. `kind="text"` takes text files, or a folder that `stepsnet prepare-text` wrote."""
    if config.kind not in READERS:
        raise UsageError(f"data.kind={config.kind} is not text; text is {', '.join(READERS)}.")
    refuse_unused_root(config)
    kind = config.kind
    if kind == "text":
        if config.root and is_prepared(Path(config.root).expanduser()):
            kind = "tokens"
        elif config.valid and is_prepared(Path(config.valid).expanduser()):
            raise UsageError(f"data.valid={config.valid} is a prepared text, but data.root={config.root} is not.")
    text = READERS[kind](config)
    text.check(config.seq_len)
    return text
