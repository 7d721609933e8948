"""The report of a run, from files as the training loop writes them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stepsnet.errors import UsageError
from stepsnet.report.run import early_line, run_report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_up_run(tmp_path)


def made_up_run(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    config = {
        "recipe": "digits",
        "task": "classification",
        "model": "test_steps_deit",
        "seed": 3,
        "join": "matched_grad",
        "plan": "16x4, 32x2",
    }
    write(folder / "config.json", config)
    write(folder / "environment.json", {"torch": "2.x", "note": "<b>&"})
    lines(folder / "metrics.jsonl", [metrics(step) for step in range(1, 31)])
    lines(folder / "eval.jsonl", [{"step": step, "loss": 3 - step / 20, "top1": step / 40} for step in (15, 30)])
    lines(folder / "gamma.jsonl", [{"step": step, "gamma": [1.0, 0.9 - step / 50, 0.5]} for step in (0, 3, 30)])
    return folder


def metrics(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 3 - step / 20,
        "lr": 1e-3,
        "grad_norm": 1.0,
        "seconds": 0.5,
        "data_seconds": 0.0,
        "images": 64,
    }


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def lines(path: Path, values: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


class WellFormed(HTMLParser):
    """Checks that every element that is opened is closed, in order."""

    ALONE = ("meta", "line", "rect", "circle", "polyline", "path", "image", "use")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.ALONE:
            assert self.open.pop() == tag


def test_the_page_is_well_formed_and_complete(run: Path) -> None:
    path = run_report(run)
    text = path.read_text()
    assert path == run / "report.html"
    parser = WellFormed()
    parser.feed(text)
    assert parser.open == []
    for expected in (
        "digits: test_steps_deit",
        "plan 16x4, 32x2",
        "Loss",
        "Validation: top1",
        "γ over depth",
        ">step 0<",
        ">step 3<",
        ">step 30<",
        "4 blocks",
        "images per second",
        "128",
        "Configuration",
        "Environment",
        "Unfinished, at step 30",
        "stepsnet resume",
    ):
        assert expected in text


def test_the_page_loads_nothing(run: Path) -> None:
    text = run_report(run).read_text()
    assert not re.search(r"<link|<img|url\((?!#)|@import|src=", text)
    assert set(re.findall(r"https?://[^\"\s]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_map_of_gamma_names_model_and_initialisation(run: Path) -> None:
    assert "test_steps_deit, join matched_grad, initialisation: its own, seed 3" in run_report(run).read_text()


def test_the_map_of_gamma_is_also_a_file(run: Path) -> None:
    run_report(run)
    assert "γ over training and depth" in (run / "gamma.svg").read_text()


def test_each_chart_has_one_title(run: Path) -> None:
    text = run_report(run).read_text()
    shown = re.sub(r'aria-label="[^"]*"', "", text)
    assert shown.count("γ over training and depth") == 1


def test_one_record_of_gamma_gives_no_map(run: Path) -> None:
    lines(run / "gamma.jsonl", [{"step": 0, "gamma": [1.0, 0.9, 0.5]}])
    text = run_report(run).read_text()
    assert "γ over depth" in text
    assert "γ over training and depth" not in text
    assert not (run / "gamma.svg").exists()


def test_gamma_above_one_is_explained_where_it_occurs(run: Path) -> None:
    assert "γ above 1" not in run_report(run).read_text()
    lines(run / "gamma.jsonl", [{"step": step, "gamma": [1.0, 1.3, None]} for step in (0, 30)])
    assert "γ above 1: σ(z_l) is smaller than σ(z_0)" in run_report(run).read_text()


def test_the_page_fits_a_phone_and_the_dark(run: Path) -> None:
    text = run_report(run).read_text()
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<table") == text.count('<div class="scroll"><table')
    assert text.count("<details>") == 2


def test_text_of_users_is_escaped(run: Path) -> None:
    assert "<b>&" not in run_report(run).read_text()


def test_a_run_without_a_step_has_a_report(tmp_path: Path) -> None:
    write(
        tmp_path / "config.json",
        {"task": "language", "model": "transformer_30m", "seed": 0, "join": "plain", "plan": 3},
    )
    assert "Unfinished, at step 0" in run_report(tmp_path).read_text()


def test_values_that_are_not_finite_and_incomplete_lines_are_accepted(run: Path) -> None:
    lines(run / "metrics.jsonl", [{**metrics(step), "loss": None} for step in (1, 2)])
    with (run / "gamma.jsonl").open("a") as file:
        file.write('{"step": 31, "gam')
    assert "not finite" in run_report(run).read_text()


def test_the_plan_of_the_weights_is_shown(run: Path) -> None:
    header = json.dumps({"__metadata__": {"plan": "8x1; 16x3"}}).encode()
    (run / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "plan 8x1; 16x3" in run_report(run).read_text()


def test_the_stack_of_a_reverse_run_has_no_joins(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    write(run / "config.json", config | {"join": "plain", "macro": "reverse"})
    text = run_report(run).read_text()
    assert "macro reverse" in text
    assert "channels that leave" in text
    assert "channels that join" not in text


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        run_report(tmp_path)


def test_early_is_near_a_tenth_and_not_the_start() -> None:
    gammas: list[dict[str, Any]] = [{"step": step} for step in (0, 50, 100, 500, 1000)]
    assert early_line(gammas)["step"] == 100
    assert early_line(gammas[:1])["step"] == 0
