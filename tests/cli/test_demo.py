"""The command, around a demo that has already happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepsnet.cli.main import main
from stepsnet.research.studies.demo import NETWORKS, Demo, Outcome

TOP1 = {"residual": 0.3, "steps": 0.6, "matched": 0.75}


def pretend_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the training of the demo by made-up results."""

    def run_demo(seed: int, out: Path, watch: Callable[..., None]) -> Demo:
        for network in NETWORKS:
            (out / network.key).mkdir(parents=True)
            watch(network, {"step": 1, "loss": 2.3})
        return Demo(seed, 300, 99.0, [
            Outcome(
                network.key, network.label, network.plan, network.join, blocks=48, params=610_922, macs=10_917_184, train_loss=1.25,
                valid={"top1": TOP1[network.key]}, gamma_start=1.0, gamma_early=0.8, gamma_late=0.5, seconds=40.0,
            )
            for network in NETWORKS
        ])

    monkeypatch.setattr("stepsnet.research.studies.demo.run_demo", run_demo)


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    pretend_demo(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_has_a_row_for_each_network(happened: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    for network in NETWORKS:
        row = next(line for line in said.splitlines() if line.strip().startswith(network.label))
        assert f"{100 * TOP1[network.key]:.1f} %" in row
        assert "0.611 M" in row
        assert "40 s" in row
    assert str(Path("runs/demo-1/report.html")) in said
    assert (happened / "runs/demo-1/report.html").is_file()


def test_json_is_one_object(happened: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "--seed", "9", "--out", "here"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seed"] == 9
    assert found["ranking"] == ["matched", "steps", "residual"]
    assert [network["key"] for network in found["networks"]] == ["residual", "steps", "matched"]
    assert found["report"] == str(Path("here/report.html"))


@pytest.mark.usefixtures("happened")
def test_a_second_demo_takes_the_next_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == main(["demo"]) == 0
    assert str(Path("runs/demo-2/report.html")) in capsys.readouterr().out


@pytest.mark.usefixtures("happened")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--seed", "-1"], "--seed: -1 is not a whole number from 0"), (["--out", "full"], "full is not an empty folder")],
)
def test_mistakes_get_a_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["demo", *words]) == 2
    assert sentence in capsys.readouterr().err
