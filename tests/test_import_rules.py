"""The rules of who may import whom cover every room, and their own kind of contract can fail."""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp
import pytest

from tools.import_rules import OnlyContract

ROOT = Path(__file__).parents[1]
LIMITLESS = {"cli", "integrations", "__main__", "__init__"}  # cli sees everything; integrations are where other libraries are known


def contract(room: str = "house.kitchen", *, may_import: str = "", faces: str = "", whole: bool = True) -> OnlyContract:
    options = {"room": room, "may_import": may_import.split(), "public_face_of": faces.split(), "as_package": str(whole)}
    return OnlyContract(name="a rule", session_options={}, contract_options=options)


def kept(rule: OnlyContract, *imports: tuple[str, str]) -> bool:
    graph = grimp.ImportGraph()
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    return rule.check(graph, verbose=False).kept


def test_every_room_has_a_rule() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    ruled = {contract["room"].removeprefix("stepsnet.") for contract in contracts if contract["type"] == "only"}
    rooms = {path.parent.name for path in ROOT.glob("stepsnet/*/__init__.py")} | {path.stem for path in ROOT.glob("stepsnet/*.py")}
    assert rooms - LIMITLESS - ruled == set()


@pytest.mark.parametrize("imported", ["house.garden", "numpy", "house", "house.kitchenette"])
def test_what_is_not_listed_breaks_the_rule(imported: str) -> None:
    assert not kept(contract(), ("house.kitchen.stove", imported))


@pytest.mark.parametrize("imported", ["house.kitchen.sink", "house.kitchen", "json", "importlib.util"])
def test_a_room_may_import_itself_and_the_standard_library(imported: str) -> None:
    assert kept(contract(), ("house.kitchen.stove", imported))


@pytest.mark.parametrize("imported", ["house.cellar", "house.cellar.shelf"])
def test_a_listed_package_is_open_with_everything_inside(imported: str) -> None:
    assert kept(contract(may_import="house.cellar"), ("house.kitchen", imported))


def test_of_a_public_face_the_package_is_open() -> None:
    assert kept(contract(faces="house.cellar"), ("house.kitchen", "house.cellar"))


def test_of_a_public_face_the_inside_is_closed() -> None:
    assert not kept(contract(faces="house.cellar"), ("house.kitchen", "house.cellar.shelf"))


def test_a_module_alone_does_not_answer_for_those_inside_it() -> None:
    assert kept(contract("house", whole=False), ("house.kitchen", "numpy"))


def test_a_module_alone_answers_for_itself() -> None:
    assert not kept(contract("house", whole=False), ("house", "house.kitchen"))


def test_a_room_still_to_be_built_keeps_the_rule() -> None:
    assert kept(contract("house.attic"), ("house.kitchen", "numpy"))


def test_a_broken_rule_names_the_import(capsys: pytest.CaptureFixture[str]) -> None:
    rule, graph = contract(may_import="torch"), grimp.ImportGraph()
    graph.add_import(importer="house.kitchen.stove", imported="numpy")
    rule.render_broken_contract(rule.check(graph, verbose=False))
    said = capsys.readouterr().out
    assert "house.kitchen.stove imports numpy" in said
    assert "house.kitchen may import: torch." in said
