"""A missing optional library raises an error that names the extra which installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepsnet.errors import UsageError
from stepsnet.optional import require


def test_an_installed_module_is_returned() -> None:
    assert require("json.decoder", extra="vision") is sys.modules["json.decoder"]


def test_the_error_names_the_missing_library_and_the_extra() -> None:
    with pytest.raises(UsageError, match=r"no_such_library is not installed.*pip install '\.\[text\]'"):
        require("no_such_library.inside", extra="text")


def test_the_missing_dependency_of_a_library_is_raised_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking_library.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs"):
        require("lacking_library", extra="text")


def test_a_submodule_missing_from_an_installed_library_is_raised_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"json\.nothing"):
        require("json.nothing", extra="text")
