"""A missing optional library is answered with the extra that brings it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepsnet.errors import UsageError
from stepsnet.optional import require


def test_an_installed_module_is_returned() -> None:
    assert require("json.decoder", extra="vision") is sys.modules["json.decoder"]


def test_a_missing_library_names_itself_and_the_extra() -> None:
    with pytest.raises(UsageError, match=r"no_such_library is not installed.*pip install 'stepsnet\[text\]'"):
        require("no_such_library.inside", extra="text")


def test_a_library_whose_own_requirement_is_missing_says_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking_library.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs"):
        require("lacking_library", extra="text")


def test_a_submodule_missing_from_an_installed_library_is_not_blamed_on_the_user() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"json\.nothing"):
        require("json.nothing", extra="text")
