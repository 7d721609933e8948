"""`stepsnet explore`."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path

import pytest

from stepsnet.cli.main import main
from stepsnet.runs.folder import GAMMA, PRETRAINED


def test_the_page_is_one_file_that_needs_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plans.html"
    assert main(["explore", "--out", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(path.resolve())
    document = path.read_text(encoding="utf-8")
    assert "{{" not in document
    assert not re.search(r'(src|href)="|@import|url\(|fetch\(|https?://(?!www\.w3\.org/)', document)


def test_the_page_has_gamma_of_the_networks_that_ship_trained(tmp_path: Path) -> None:
    path = tmp_path / "plans.html"
    assert main(["explore", "--out", str(path)]) == 0
    section = path.read_text(encoding="utf-8").partition("<h2>γ of trained networks</h2>")[2].partition("<h2>")[0]
    assert section.count("<svg") == len(list(PRETRAINED.glob(f"*/{GAMMA}"))) > 0
    assert "steps_transformer_mini" in section


def test_it_is_opened_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))  # type: ignore[func-returns-value]
    path = tmp_path / "plans.html"
    assert main(["explore", "--out", str(path)]) == 0
    assert opened == []
    assert main(["explore", "--out", str(path), "--open"]) == 0
    assert opened == [path.resolve().as_uri()]


def test_without_a_browser_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    assert main(["explore", "--out", str(tmp_path / "plans.html"), "--open"]) == 0
    assert "No browser was found; open the file yourself." in capsys.readouterr().err


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--out", str(tmp_path / "none" / "plans.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
