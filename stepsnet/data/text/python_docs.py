"""Embedded text: the documentation of the Python that is running, about 2 MB that everybody already has.

Modules are parsed, never imported, so that reading their documentation strings has no side effects. The text depends on the version of
Python: figures from it compare within one version only.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sysconfig
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stepsnet.data.config import DataConfig
from stepsnet.data.text.windows import Text, TextStore
from stepsnet.errors import UsageError

# Installed packages are not Python's; tests and generated tables carry next to no documentation.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "encodings", "pydoc_data"}


def load_python_docs(config: DataConfig) -> Text:
    """Documentation strings and topics; one module or topic in `valid_fraction` goes to validation, whole, chosen by its name."""
    documents = _documents()
    if not documents:
        raise UsageError("python_docs: this Python comes without the sources of its library, so there is no documentation to read.")
    parts: dict[bool, list[str]] = {False: [], True: []}
    for name, text in documents:
        parts[zlib.crc32(name.encode()) < config.valid_fraction * 2**32].append(text)
    train, valid = (TextStore([np.frombuffer("".join(parts[part]).encode(), dtype=np.uint8)]) for part in (False, True))
    return Text("python_docs", train, valid)


@functools.cache
def _documents() -> tuple[tuple[str, str], ...]:
    """(module or topic, text) in order of name. A string that occurs twice is kept once, so that the split has no overlap."""
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
                    warnings.simplefilter("ignore")  # old escapes in somebody else's sources are not our user's concern
                    tree = ast.parse(path.read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue  # a file that this Python itself could not import
            yield name.as_posix(), list(_docstrings(tree))


def _docstrings(tree: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Documentation of a module, class or function, then of those defined inside it, in order."""
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
    """The pages behind `help("LOOPING")`: a module that is one dictionary."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        return
    for name in sorted(topics):
        yield f"topic {name}", [topics[name].strip()]
