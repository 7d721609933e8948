"""The pages of docs/results/performance.md and the program that fills them agree."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepsnet.cli.bench import add_arguments
from stepsnet.cli.main import Parser
from stepsnet.research.bench import performance
from stepsnet.research.bench.performance import GOALS, goals_table

MACHINE = {
    "cpu": "Some CPU", "cores": 2, "threads": 2, "instructions": "AVX512", "bf16_instructions": [],
    "system": "Linux", "python": "3.11", "torch": "2.13", "date": "2026-01-02 03:04 UTC",
}  # fmt: skip


def speed_document(ratio: float, *, mode: str = "inference", model: str = "deit_tiny") -> dict[str, Any]:
    def contender(label: str, ratio: float) -> dict[str, Any]:
        spread = {"median": ratio, "lower": ratio - 0.1, "upper": ratio + 0.1}
        time = {"median": 0.1, "lower": 0.1, "upper": 0.1}
        return {"label": label, "model": model, "macs": 1, "time": time, "ratio": spread, "ratio_per_mac": spread,
                "throughput": 80.0, "gflops": 100.0, "share_of_peak": 0.5, "difference": None}  # fmt: skip

    case = {
        "model": model,
        "mode": mode,
        "batch": 8,
        "dtype": "fp32",
        "contenders": [contender("timm", 1.0), contender("stepsnet", ratio)],
    }
    return {
        "benchmark": "speed",
        "command": "stepsnet bench speed …",
        "machine": MACHINE,
        "peak_gflops": {"fp32": 200.0},
        "cases": [case],
    }


def test_every_mark_of_the_page_names_commands_and_every_command_has_a_mark() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in performance.PAGES)
    marks = re.findall(r"<!-- bench: ([^>]*?) -->", text)
    assert sorted(" ".join(marks).split()) == sorted([*performance.COMMANDS, *performance.PRINTS])


@pytest.mark.parametrize(
    "command", [command for command in performance.COMMANDS.values() if command.startswith("stepsnet bench")]
)
def test_commands_are_understood(command: str) -> None:
    parser = Parser()
    add_arguments(parser)
    parser.parse_intermixed_args(shlex.split(command)[2:])


def test_goals_are_about_commands_that_exist() -> None:
    import fnmatch

    for goal in GOALS:
        for pattern in goal.commands.split("|"):
            assert fnmatch.filter(performance.COMMANDS, pattern), goal.what


@pytest.mark.parametrize(("ratio", "met"), [(1.10, "yes"), (1.05, "no")])
def test_a_goal_is_met_by_the_lower_quartile_of_the_worst_case(ratio: float, met: str) -> None:
    document = speed_document(2.0)
    document["cases"] += speed_document(ratio, mode="training")["cases"]
    row = goals_table({"timm_deit": document}).rows[0]
    assert row == ["DeiT against timm", "≥ 0.97", f"{ratio - 0.1:.2f}", f"{ratio:.2f}", met]


def test_a_goal_without_results_says_so() -> None:
    rows = {row[0]: row[1:] for row in goals_table({"timm_deit": speed_document(1.2)}).rows}
    assert rows["bf16 against fp32, DeiT-S and Swin-T, inference"] == ["≥ 1.40", "not measured", "", ""]


def test_the_goal_of_bf16_is_met_by_its_lower_quartile() -> None:
    rows = {row[0]: row[1:] for row in goals_table({"bf16": speed_document(1.6, model="deit_small")}).rows}
    assert rows["bf16 against fp32, DeiT-S and Swin-T, inference"] == ["≥ 1.40", "1.50", "1.60", "yes"]


@pytest.mark.parametrize(("has", "ran"), [(True, ["bf16"]), (False, [])])
def test_bf16_is_measured_only_where_the_cpu_has_it(
    has: bool, ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(words[words.index("--out") + 1])
        folder.mkdir()
        (folder / "result.json").write_text("{}")
        return subprocess.CompletedProcess(words, 0, stdout="")

    monkeypatch.setattr(performance, "has_bf16", lambda: has)
    monkeypatch.setattr(subprocess, "run", finish)
    assert performance.run(tmp_path, "bf16", []) == 0
    assert [path.name for path in tmp_path.iterdir()] == ran


def test_each_instruction_set_fills_its_own_goals_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    marks = ("AVX2", "AVX512", "AVX512+avx512_bf16", "AVX512+amx_bf16")
    page.write_text("".join(f"<!-- goals: {mark} -->\nas before\n<!-- end -->\n" for mark in marks))
    monkeypatch.setattr(performance, "PAGES", [page])
    monkeypatch.setattr(performance, "FIGURES", tmp_path / "figures")
    machines = {
        "timm_deit": MACHINE, "timm_swin": MACHINE | {"instructions": "AVX2"},
        "bf16": MACHINE | {"bf16_instructions": ["avx512_bf16"]},
    }  # fmt: skip
    for name, machine in machines.items():
        (tmp_path / name).mkdir()
        document = speed_document(1.6, model="swin_tiny") | {"machine": machine}
        (tmp_path / name / "result.json").write_text(json.dumps(document))
    assert performance.write(tmp_path) == 0
    avx2, avx512, bf16, other = page.read_text().split("<!-- goals: ")[1:]
    assert "| Swin against timm, inference | ≥ 0.97 | 1.50 | 1.60 | yes |" in avx2
    assert "| DeiT against timm | ≥ 0.97 | not measured |" in avx2
    assert "| DeiT against timm | ≥ 0.97 | 1.50 | 1.60 | yes |" in avx512
    assert "| bf16 against fp32, DeiT-S and Swin-T, inference | ≥ 1.40 | 1.50 | 1.60 | yes |" in bf16
    assert "as before" in other
    assert "as before" not in avx2 + avx512 + bf16


def test_goals_alone_leave_the_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    table = "<!-- bench: timm_deit -->\nof another machine\n<!-- end -->\n"
    page.write_text(f"<!-- goals: AVX512 -->\nold\n<!-- end -->\n{table}")
    monkeypatch.setattr(performance, "PAGES", [page])
    monkeypatch.setattr(performance, "FIGURES", tmp_path / "figures")
    (tmp_path / "timm_deit").mkdir()
    (tmp_path / "timm_deit" / "result.json").write_text(json.dumps(speed_document(1.25)))
    assert performance.write(tmp_path, goals_only=True) == 0
    assert "| DeiT against timm | ≥ 0.97 | 1.15 | 1.25 | yes |" in page.read_text()
    assert page.read_text().endswith(table)
    assert not (tmp_path / "figures").exists()


def test_the_page_is_filled_and_can_be_filled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench: timm_deit timm_swin -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(performance, "PAGES", [page])
    monkeypatch.setattr(performance, "FIGURES", tmp_path / "figures")
    (tmp_path / "timm_deit").mkdir()
    (tmp_path / "timm_deit" / "result.json").write_text(json.dumps(speed_document(1.25)))
    assert performance.write(tmp_path) == 0
    first = page.read_text()
    assert performance.write(tmp_path) == 0
    assert page.read_text() == first
    assert first.startswith("before\n<!-- bench: timm_deit timm_swin -->\n\n```sh\nstepsnet bench speed …\n```")
    assert "| | stepsnet | 1.25 | 1.15 |" in first.replace("|  |", "| |")
    assert "Some CPU, 2 cores, 2 threads, AVX512, no instructions for bf16, torch 2.13, 2026-01-02 03:04 UTC." in first
    assert "Not measured yet: timm_swin." in first
    assert first.endswith("<!-- end -->\nafter\n")
    assert "old" not in first
