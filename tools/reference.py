"""The API reference as Markdown, from docstrings: a page per package that has `__all__`, one of the names in modules of
other packages, and one of all commands.

Run by `tools.site`; nothing of it is kept in the repository.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from html import escape
from types import ModuleType
from typing import Any

import stepsnet
from stepsnet.cli.main import COMMANDS, load, parser_of

INTRODUCTION = """\
# Python reference

A page for each package with public names, made from their docstrings when the site is built. Names of `stepsnet` itself
are the ones to start with. `stepsnet.UsageError` is raised for wrong arguments; its message says what is allowed.

| package | what it has |
|---|---|
"""


def public_modules() -> list[ModuleType]:
    """`stepsnet` and its packages that have `__all__`; the command line is not among them."""
    names = [found.name for found in pkgutil.walk_packages(stepsnet.__path__, "stepsnet.") if found.ispkg]
    modules = [stepsnet, *(importlib.import_module(name) for name in names if not name.startswith("stepsnet.cli"))]
    return [module for module in modules if hasattr(module, "__all__")]


def api_pages() -> dict[str, str]:
    """File name → page, for the folder reference/api."""
    modules = public_modules()
    pages = {f"{module.__name__}.md": _page(module) for module in modules}
    rows = [f"| [{module.__name__}]({module.__name__}.md) | {_sentence(module)} |\n" for module in modules]
    rows.append("| [Names in modules](modules.md) | Classes and functions that packages do not export |\n")
    return {"index.md": INTRODUCTION + "".join(rows), "modules.md": modules_page()} | pages


def modules_page() -> str:
    """Public classes and functions of modules that no other page has, with the first part of their docstrings."""
    shown = {id(getattr(module, name)) for module in public_modules() for name in module.__all__}
    parts = ["# Names in modules\n\nClasses and functions that a package does not export, for those who extend it.\n"]
    for module in inner_modules():
        own = {name: value for name, value in vars(module).items() if defined_in(module, name, value)}
        rows = [f"- `{name}`: {_sentence(value)}" for name, value in own.items() if id(value) not in shown]
        if rows:
            parts += [f"## {module.__name__}\n", f"{_sentence(module)}\n", *rows, ""]
    return "\n".join(parts)


def inner_modules() -> list[ModuleType]:
    """Modules and packages without `__all__`, except those of the command line, the research and optional imports."""
    found = [each.name for each in pkgutil.walk_packages(stepsnet.__path__, "stepsnet.")]
    left = ("stepsnet.cli", "stepsnet.research", "stepsnet.__main__", "stepsnet.optional")
    return [importlib.import_module(name) for name in found if not name.startswith(left)]


def defined_in(module: ModuleType, name: str, value: Any) -> bool:
    """Whether a module itself defines a public class or function."""
    if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
        return False
    return inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value))  # a cached function is an object


def commands_page() -> str:
    """`--help` of every command."""
    parts = ["# Commands\n\nThe output of `--help`. `stepsnet completion` sets up the shell's completion.\n"]
    for group, names in COMMANDS.items():
        parts.append(f"## {group}\n")
        for name in names:
            parser = parser_of(name, load(name))
            parts.append(f"### {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n")
    return "\n".join(parts)


def _page(module: ModuleType) -> str:
    parts = [f"# {module.__name__}\n", markdown(inspect.getdoc(module) or "")]
    for name in sorted(module.__all__, key=str.lower):
        if not name.startswith("__"):
            parts += _entry(module, name, getattr(module, name))
    return "\n".join(parts) + "\n"


def _entry(home: ModuleType, name: str, value: Any) -> Iterator[str]:
    yield f"## `{name}` {{ #{name} }}\n"
    if home is not stepsnet and getattr(stepsnet, name, None) is value:
        yield f"The same as [stepsnet.{name}](stepsnet.md#{name}).\n"
        return
    if inspect.ismodule(value):
        page = f"{value.__name__}.md" if hasattr(value, "__all__") else ""
        yield f"A module. [Its page]({page}).\n" if page else markdown(inspect.getdoc(value) or "")
        return
    if not inspect.isclass(value) and not inspect.isfunction(value):
        yield f"```python\n{name} = {_shortened(value)}\n```\n"
        return
    yield _signature(name, value)
    yield markdown(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        yield from _members(name, value)


def _members(owner: str, kind: type) -> Iterator[str]:
    """Fields with the text below them, then public methods and properties that the class itself defines."""
    fields = _fields(kind)
    if fields:
        yield "| field | type | meaning |\n|---|---|---|"
        for name, (annotation, text) in fields.items():
            yield f"| `{name}` | `{_cell(annotation)}` | {_cell(_escaped(text))} |"
        yield ""
    for name, value in vars(kind).items():
        about = inspect.cleandoc(value.__doc__ or "")  # its own, not that of a base class
        if name.startswith("_") or not about or name in fields:
            continue
        called = getattr(kind, name)
        if isinstance(value, property):
            yield f"### `{name}` {{ #{owner}.{name} }}\n"
            yield markdown(about)
        elif inspect.isroutine(called):
            yield f"### `{name}()` {{ #{owner}.{name} }}\n"
            yield _signature(name, called)
            yield markdown(about)


def _fields(kind: type) -> dict[str, tuple[str, str]]:
    """Name → annotation and the string below it, of a class as it is written."""
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # a class made at run time has no source
        return {}
    found: dict[str, tuple[str, str]] = {}
    last = ""
    for line in body.body if isinstance(body, ast.ClassDef) else []:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            last = line.target.id
            if not last.startswith("_"):
                found[last] = (ast.unparse(line.annotation), "")
        elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and last in found:
            found[last] = (found[last][0], " ".join(str(line.value.value).split()))
        else:
            last = ""
    return found


class _Raw(str):
    """Text that a signature shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(name: str, value: Any) -> str:
    """The call as a code block: annotations as they are written, a line for each parameter where one is too short."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):  # a class written in C
        return ""
    words: list[str] = []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        changes: dict[str, Any] = {}
        if isinstance(parameter.annotation, str):
            changes["annotation"] = _Raw(parameter.annotation)
        if repr(parameter.default).startswith("<") and parameter.default is not parameter.empty:
            changes["default"] = _Raw("…")  # a function or an object
        words.append(str(parameter.replace(**changes)))
    back = found.return_annotation
    shown = "" if back in (found.empty, None, "None") else f" -> {back if isinstance(back, str) else back.__name__}"
    line = f"{name}({', '.join(words)}){shown}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){shown}"
    return f"```python\n{line}\n```\n"


def markdown(text: str) -> str:
    """A docstring as Markdown: examples and indented lines become code blocks, other text is escaped."""
    parts: list[str] = []
    for paragraph in text.split("\n\n"):
        if paragraph.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{textwrap.dedent(paragraph)}\n```")
        elif all(line.startswith("    ") for line in paragraph.splitlines()):
            parts.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            parts.append(_escaped(paragraph))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Escaped outside `code`, where Markdown would take < > as HTML, [x] as a link and * as emphasis."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\[\]*_])", r"\\\1", escape(piece, quote=False))
        for piece in pieces
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shortened(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 160 else text[:159] + "…"


def _sentence(value: Any) -> str:
    return _cell(_escaped((inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")))
