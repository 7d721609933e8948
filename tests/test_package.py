"""The package as it is installed: what it names, what importing it costs, and the lock."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import stepsnet

ROOT = Path(__file__).parents[1]
UNLOCKED = "track"
"""An extra that neither `all` nor the lock contains: clients of services that few use."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def lock() -> dict[str, str]:
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): pinned for name, pinned in (line.split("==") for line in lines)}


def modules_after(code: str) -> set[str]:
    """The libraries that a new interpreter has loaded after `code`."""
    code += "\nimport sys\nprint('\\nloaded', *{name.partition('.')[0] for name in sys.modules})"
    finished = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return set(finished.stdout.splitlines()[-1].split()[1:])


def test_importing_the_package_loads_no_other_library() -> None:
    assert modules_after("import stepsnet") - modules_after("") - set(sys.stdlib_module_names) <= {"stepsnet"}


def test_help_is_answered_without_torch() -> None:
    loaded = modules_after("from stepsnet.cli.main import main\nassert main(['--help']) == 0")
    assert "stepsnet" in loaded
    assert not loaded & {"torch", "numpy"}


def test_models_load_no_optional_library(project: dict[str, Any]) -> None:
    imported_as = {"scikit-learn": "sklearn", "pillow": "PIL"}
    extras = {
        Requirement(line).name
        for name, extra in project["optional-dependencies"].items()
        if name != "dev"
        for line in extra
    }
    optional = {imported_as.get(name, name) for name in extras} - {"stepsnet"}
    loaded = modules_after("import stepsnet\nstepsnet.create_model")
    assert "torch" in loaded
    assert not loaded & optional


def test_a_plain_import_of_timm_works_in_the_projects_environment() -> None:
    assert "timm" in modules_after("import timm")


@pytest.mark.parametrize("name", stepsnet.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(stepsnet, name) is getattr(stepsnet, name)


def test_analysis_is_there_after_a_plain_import() -> None:
    assert "torch" in modules_after("import stepsnet\nstepsnet.analysis.shortcut_ratio")


def test_dir_lists_the_public_names() -> None:
    assert set(stepsnet.__all__) <= set(dir(stepsnet))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'stepsnet' has no attribute 'StepNet'"):
        _ = stepsnet.StepNet  # type: ignore[attr-defined]  # the point of the test


def test_every_requirement_is_met_by_the_lock(project: dict[str, Any], lock: dict[str, str]) -> None:
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != UNLOCKED}
    lines = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    wanted = [requirement for requirement in map(Requirement, lines) if requirement.name != "stepsnet"]
    unmet = [
        str(requirement)
        for requirement in wanted
        if lock.get(canonicalize_name(requirement.name), "0") not in requirement.specifier
    ]
    assert unmet == []


def test_all_is_every_extra_a_user_may_want(project: dict[str, Any]) -> None:
    (everything,) = project["optional-dependencies"]["all"]
    assert Requirement(everything).extras == set(project["optional-dependencies"]) - {"all", "dev", "docs", UNLOCKED}


def test_the_lock_names_no_build_of_torch(lock: dict[str, str]) -> None:
    """A local version such as 2.13.0+cpu could be installed only from where that very build is offered."""
    assert [name for name, pinned in lock.items() if not re.fullmatch(r"[0-9.]+(post\d+)?", pinned)] == []


def test_the_installed_libraries_are_the_locked_ones(lock: dict[str, str]) -> None:
    assert {name: version(name).partition("+")[0] for name in lock} == lock


def test_type_checkers_find_the_types() -> None:
    """tests/typed_user.py is what they check. `compat` installs a path, which they read, instead of an import hook."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in settings["package-data"]["stepsnet"]  # in wheels
    assert (ROOT / "stepsnet" / "py.typed").is_file()
    assert "--editable . --config-settings editable_mode=compat" in (ROOT / "Makefile").read_text()


def test_citation_and_changelog_have_the_packages_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [stepsnet.__version__]
    assert stepsnet.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
