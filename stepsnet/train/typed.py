"""Nested dataclasses from `key=value` words with dotted keys and from JSON. Values are checked against their types."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import types
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stepsnet.errors import UsageError, nearest

Config = TypeVar("Config")

_SPECIAL_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": None}


def dotted_keys(kind: type, prefix: str = "") -> dict[str, Any]:
    """All keys with their types: {"lr": float, "optim.clip": float, …}. A dict field is one key."""
    keys: dict[str, Any] = {}
    for name, hint in _fields(kind).items():
        if dataclasses.is_dataclass(hint):
            keys |= dotted_keys(hint, f"{prefix}{name}.")  # type: ignore[arg-type]  # a class, not an instance
        else:
            keys[prefix + name] = hint
    return keys


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the reference: `default` is None where a value must be given, else a list of one value."""

    name: str
    kind: str
    default: list[Any] | None
    meaning: str


def reference(kind: type, prefix: str = "") -> list[Key]:
    """All keys with type, default and meaning, which is the docstring below the field."""
    meanings = _docstrings(kind)
    keys: list[Key] = []
    for field in dataclasses.fields(kind):
        name, hint = prefix + field.name, _fields(kind)[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            keys += reference(hint, f"{name}.")
            continue
        given = field.default is not dataclasses.MISSING
        factory = field.default_factory
        default = [field.default] if given else None if factory is dataclasses.MISSING else [factory()]
        keys.append(Key(name, describe(hint), default, meanings.get(field.name, "")))
    return keys


def _docstrings(kind: type) -> dict[str, str]:
    """The string that follows each field in the source of a class."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip


def override(config: Config, words: Sequence[str]) -> Config:
    """A copy of `config` with each `key=value` applied. Unknown keys and values of wrong types are errors."""
    kind = type(config)
    known = dotted_keys(kind)
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} is not of the form key=value{nearest(key, known)}.")
        owner = next((k for k, hint in known.items() if get_origin(hint) is dict and key.startswith(f"{k}.")), None)
        if owner is not None:  # a free-form dictionary: model_args.embed_dim=64
            value, listed = _guess(text), _guess(f"[{text}]")
            several = value == text and isinstance(listed, list) and len(listed) > 1  # 1,1,1 as [1, 1, 1]
            changes.setdefault(owner, {})[key.removeprefix(f"{owner}.")] = listed if several else value
        elif key in known:
            changes[key] = _parse(key, text, known)
        else:
            raise UsageError(f"There is no key {key!r}{nearest(key, known)}.")
    return _replace(config, changes)


def to_dict(config: Any) -> dict[str, Any]:
    """Dictionaries, lists and scalars, ready for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one level of dotted keys: {"data.kind": …}, as the command line takes them."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return result


def from_dict(kind: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """The inverse of `to_dict`. Unknown keys and wrong types are errors; missing keys take their defaults."""
    hints = _fields(kind)
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise UsageError(f"There is no key {where + name!r}{nearest(where + name, dotted_keys(kind, where))}.")
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            if not isinstance(value, Mapping):
                raise UsageError(f"{where}{name} is {value!r}, but must hold the keys {', '.join(_fields(hint))}.")
            given[name] = from_dict(hint, value, f"{where}{name}.")
        else:
            given[name] = _checked(where + name, value, hint)
    missing = [
        f.name
        for f in dataclasses.fields(kind)  # type: ignore[arg-type]  # callers pass dataclasses
        if f.name not in given and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(f"The key {where}{missing[0]} is missing.")
    return kind(**given)


def _fields(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _replace(config: Config, changes: Mapping[str, Any]) -> Config:
    """Apply dotted changes with one `replace` per dataclass, so that its checks see only the final values."""
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        head, dot, rest = key.partition(".")
        if dot:
            nested.setdefault(head, {})[rest] = value
        else:
            current = getattr(config, head)
            own[head] = {**current, **value} if isinstance(current, dict) else value
    own |= {head: _replace(getattr(config, head), inner) for head, inner in nested.items()}
    return dataclasses.replace(config, **own)  # type: ignore[type-var]


def _parse(key: str, text: str, known: Mapping[str, Any]) -> Any:
    """The first that fits the type of `key`: JSON, a list without brackets, the text itself, words between commas."""
    hint = known[key]
    listed = _guess(f"[{text.strip('()')}]")
    words = [word.strip() for word in text.split(",")]
    for value in (_guess(text), *([listed] if isinstance(listed, list) else []), text, words):
        try:
            return _checked(key, value, hint)
        except UsageError:
            continue
    choices = [str(c) for option in _alternatives(hint) if get_origin(option) is Literal for c in get_args(option)]
    raise UsageError(f"{key} takes {describe(hint)}, not {text!r}{nearest(text, choices)}.")


def _guess(text: str) -> Any:
    """JSON if it is JSON, a word for true, false or none, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return _SPECIAL_WORDS.get(text.lower(), text)


def _checked(key: str, value: Any, hint: Any) -> Any:
    """`value` if it fits one of the alternatives of `hint`; 3 and 3.0 are interchangeable."""
    finite = type(value) is not float or math.isfinite(value)
    for option in _alternatives(hint) if finite else ():
        origin, inner = get_origin(option), get_args(option)
        fits = type(value) is option or (origin is dict and isinstance(value, dict))
        if fits or (origin is Literal and value in inner):
            return value
        if option is float and type(value) is int:
            return float(value)
        if option is int and type(value) is float and value.is_integer():
            return int(value)
        if origin is list and isinstance(value, list):
            return [_checked(key, item, inner[0]) for item in value]
        if origin is tuple and isinstance(value, (list, tuple)) and len(value) == len(inner):
            return tuple(_checked(key, item, kind) for item, kind in zip(value, inner, strict=True))
    raise UsageError(f"{key} takes {describe(hint)}, not {value!r}.")


def _alternatives(hint: Any) -> list[Any]:
    """The members of a union: the strictest first, `str`, which accepts anything, last."""
    options = list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]
    order = [types.NoneType, bool, int, float]
    return sorted(options, key=lambda option: order.index(option) if option in order else 9 if option is str else 5)


def describe(hint: Any) -> str:
    """A type in words."""
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "none"}
    parts = []
    for option in _alternatives(hint):
        origin = get_origin(option)
        if option in words:
            parts.append(words[option])
        elif origin is Literal:
            parts.append(" or ".join(str(c) for c in get_args(option)))
        elif origin is tuple:
            parts.append(f"{len(get_args(option))} values separated by commas")
        else:
            parts.append("values separated by commas" if origin is list else "keys of its own")
    return " or ".join(parts[1:] + parts[:1] if parts[0] == "none" else parts)
