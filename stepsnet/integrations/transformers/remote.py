"""One self-contained Python file per family, written beside saved weights: the folder loads without stepsnet.

The file is made from our own sources: all definitions that the family's classes need, in an order in which they can be
executed, with imports of stepsnet removed. Two definitions of the same name get different names.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import stepsnet
from stepsnet.files import replace_file
from stepsnet.integrations.transformers.auto import FAMILIES

LEFT_OUT = "stepsnet.integrations.transformers.native"
"""Its classes link to the rest of stepsnet. They are empty in the file."""
HEADER = '''"""Models of the type {kind} for the transformers library, from stepsnet {version}.

Made from the sources of stepsnet (Apache-2.0) by `save_pretrained`, so that this folder loads with
`trust_remote_code=True` where stepsnet is not installed. Do not edit.
"""

from __future__ import annotations
'''


def write_code(model: type, folder: Path) -> None:
    """Write the code of a model's family to a saved folder, and name its classes in config.json."""
    family = next(family for family in FAMILIES.values() if model in family.models.values())
    name = f"modeling_{family.config.model_type}"
    replace_file(folder / f"{name}.py", code_of(family.config.model_type).encode())
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["auto_map"] = {auto: f"{name}.{found.__name__}" for auto, found in family.auto_map.items()}
    replace_file(path, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())


@cache
def code_of(kind: str) -> str:
    """The file of a family, by its model type."""
    family = next(family for family in FAMILIES.values() if family.config.model_type == kind)
    bundle = Bundle()
    for found in family.auto_map.values():
        bundle.add(Symbol(found.__module__, found.__name__))
    header = HEADER.format(kind=kind, version=stepsnet.__version__)
    registered = "\n".join(
        f"{auto.__name__}.register({family.config.__name__}, {model.__name__}, exist_ok=True)"
        for auto, model in family.models.items()
    )
    autos = "\n".join(f"from transformers import {auto.__name__}" for auto in family.models)
    return f"{header}\n{autos}\n{bundle.text()}\n\n{registered}\n"


@dataclass(frozen=True)
class Symbol:
    """A name at the top level of a module. Without a name it is the module; without a module, an import statement."""

    module: str
    name: str


class Source:
    """A module of stepsnet: its top-level definitions by name, and what its imports bind."""

    def __init__(self, module: str) -> None:
        self.module = module
        path = importlib.import_module(module).__file__
        assert path is not None
        self.text = Path(path).read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, Symbol] = {}
        tree = ast.parse(self.text)
        self.ends: dict[ast.stmt, int] = {}
        for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
            described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            self.ends[statement] = (following if described and following else statement).end_lineno or 0
            for name in _defined(statement):
                self.definitions[name] = statement
        for node in (node for statement in tree.body for node in _imports_of(statement)):
            self.imports |= dict(_bound(node))

    def segment(self, statement: ast.stmt) -> tuple[int, int]:
        """First and last line, with decorators, the comment above and the description below."""
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(decorator.lineno for decorator in decorators)]) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        return first, self.ends[statement]


@cache
def source_of(module: str) -> Source:
    return Source(module)


def resolve(symbol: Symbol) -> Symbol:
    """Where a name is defined: packages pass on the names of their modules."""
    if not symbol.module or not symbol.name:
        return symbol
    source = source_of(symbol.module)
    if symbol.name in source.definitions:
        return symbol
    if source.imports.get(symbol.name, symbol) != symbol:  # `from package import module` in the package itself
        return resolve(source.imports[symbol.name])
    return Symbol(f"{symbol.module}.{symbol.name}", "")


class Bundle:
    """Definitions and imports under names that differ from each other."""

    def __init__(self) -> None:
        self.names: dict[Symbol, str] = {}
        self.order: list[Symbol] = []

    def add(self, symbol: Symbol) -> None:
        """Add a definition after all that it needs."""
        if symbol in self.names:
            return
        taken = set(self.names.values())
        local = _local(symbol)
        self.names[symbol] = f"{local}_{symbol.module.rpartition('.')[2] or 'library'}" if local in taken else local
        if symbol.module and symbol.module != LEFT_OUT:
            statement = source_of(symbol.module).definitions[symbol.name]
            for _, used in self.used(symbol.module, statement):
                self.add(used)
        self.order.append(symbol)

    def used(self, module: str, statement: ast.stmt) -> Iterator[tuple[ast.expr, Symbol]]:
        """All global names in a statement, with what they stand for. `swin.Block` is the `Block` of that module."""
        source = source_of(module)
        inner = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found = resolve(source.imports[node.value.id]) if node.value.id in source.imports else None
                if found and found.module and not found.name:
                    inner.add(node.value)
                    yield node, resolve(Symbol(found.module, node.attr))
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node not in inner:
                if node.id in source.imports:
                    yield node, resolve(source.imports[node.id])
                elif node.id in source.definitions:
                    yield node, Symbol(module, node.id)

    def text(self) -> str:
        imports = sorted({self._import(symbol) for symbol in self.order if not symbol.module})
        parts = ["\n".join(imports)]
        done: set[tuple[str, int]] = set()
        for symbol in self.order:
            if symbol.module == LEFT_OUT:
                parts.append(f"class {self.names[symbol]}:\n    pass")
            elif symbol.module:
                first, last = source_of(symbol.module).segment(source_of(symbol.module).definitions[symbol.name])
                if (symbol.module, first) not in done:
                    parts.append(self._definition(symbol, first, last))
                done.add((symbol.module, first))
        return "\n\n\n".join(parts)

    def _import(self, symbol: Symbol) -> str:
        own, name = _local(symbol), self.names[symbol]
        return symbol.name if own == name else re.sub(r"( as \w+)?$", f" as {name}", symbol.name)

    def _definition(self, symbol: Symbol, first: int, last: int) -> str:
        """The source of a definition, with names as they are in the file."""
        source = source_of(symbol.module)
        statement = source.definitions[symbol.name]
        lines = [line.encode() for line in source.lines]  # positions in the tree count bytes
        for node, used in sorted(self.used(symbol.module, statement), key=lambda pair: -pair[0].col_offset):
            row = node.lineno - 1
            lines[row] = lines[row][: node.col_offset] + self.names[used].encode() + lines[row][node.end_col_offset :]
        text = b"\n".join(lines[first:last]).decode()
        return re.sub(rf"^(class|def) {symbol.name}\b", rf"\1 {self.names[symbol]}", text, flags=re.MULTILINE)


def _local(symbol: Symbol) -> str:
    """The name that a definition or an import statement binds."""
    return symbol.name.split()[-1].partition(".")[0]


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    if isinstance(statement, ast.Assign):
        return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _imports_of(statement: ast.stmt) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield statement
    elif isinstance(statement, ast.If):  # TYPE_CHECKING
        yield from (node for node in statement.body if isinstance(node, ast.Import | ast.ImportFrom))


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Symbol]]:
    """Names that an import binds: to a name in stepsnet, or to an import statement of its own."""
    for alias in node.names:
        name = alias.asname or alias.name
        if isinstance(node, ast.Import):
            yield name.partition(".")[0], Symbol("", ast.unparse(ast.Import([alias])))
        elif node.module and node.module.startswith("stepsnet"):
            yield name, Symbol(node.module, alias.name)
        elif node.module != "__future__":
            yield name, Symbol("", ast.unparse(ast.ImportFrom(node.module, [alias], 0)))
