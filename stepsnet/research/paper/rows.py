"""What a table of the paper is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """`printed` holds the strings of the paper, so that their digits say how exact they are; `model` and `options` make ours."""

    label: str
    model: str
    printed: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    exceptions: tuple[str, ...] = ()
    around: str = ""
    """What is built around the model: mask_rcnn, cascade or upernet; empty: it stands alone."""


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    result: str
    rows: tuple[Row, ...]
    note: str = ""
