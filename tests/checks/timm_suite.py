"""timm's own model tests on our registered models. The tests are in timm's source tree and not in its package.

    git clone --depth 1 https://github.com/huggingface/pytorch-image-models /tmp/timm
    PYTHONPATH=STEPSNET:STEPSNET/tests/checks python -m pytest -c /dev/null -p timm_suite \
        -k "test_model_ and not script and not fx" /tmp/timm/tests/test_models.py

This plugin limits `timm.list_models` to our names before the tests ask for them. timm chooses tests by patterns of
names: `deit*` is a model without a last map (B, C, H, W). They are applied to our names without "test_" and "steps_".
STEPSNET_NAMES="steps_deit_* swin_tiny" chooses among them. docs/how-to/timm.md has the counts.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from typing import Any

import stepsnet.timm
from stepsnet.optional import require

timm: Any = require("timm", extra="timm")
CHOSEN = os.environ.get("STEPSNET_NAMES", "*").split()


def _matches(name: str, patterns: str | Sequence[str]) -> bool:
    plain = name.removeprefix("test_").removeprefix("steps_")
    given = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatch.fnmatch(plain, pattern) for pattern in given)


def list_models(
    filter: str | Sequence[str] = "",  # noqa: A002  # timm's name
    pretrained: bool = False,
    exclude_filters: str | Sequence[str] = "",
    **_others: Any,
) -> list[str]:
    """Our names that the patterns choose. All of them return intermediate maps, for which timm asks by `module`."""
    return [
        name
        for name in stepsnet.timm.NAMES
        if any(fnmatch.fnmatch(name, pattern) for pattern in CHOSEN)
        and (not filter or _matches(name, filter))
        and not _matches(name, exclude_filters)
        and (not pretrained or stepsnet.timm.default_cfgs[name].is_pretrained)
    ]


def list_pretrained(*_patterns: str, **_others: Any) -> list[str]:
    """None: timm compares these with tensors that it has published."""
    return []


timm.list_models, timm.list_pretrained = list_models, list_pretrained
