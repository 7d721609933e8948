"""The command from words to tables, JSON and pages, on tiny networks and too few rounds to say anything about speed."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from stepsnet.cli.main import main
from stepsnet.models import create_model, save_model
from stepsnet.units import counted

QUICK = ["--rounds", "2", "--batch", "2"]


@pytest.fixture(autouse=True)
def _two_rounds_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepsnet.cli.bench.FEWEST_ROUNDS", 1)
    monkeypatch.setattr("stepsnet.research.bench.timing.PEAK_SIZES", (16,))
    # Real processes are started by tests/bench.
    monkeypatch.setattr("stepsnet.research.bench.memory.peak_in_child", lambda subject, mode, batch: 1_000_000 * batch)


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["bench", *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_speed_prints_the_ratio_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed", "test_deit", "--against", "timm", *QUICK]) == 0
    said = capsys.readouterr().out
    assert re.match(r"test_deit, inference, batch 2: stepsnet is \d+\.\d\d × timm \(quartiles ", said)
    header = next(line for line in said.splitlines() if line.strip().startswith("case"))
    assert header.index("speed ×") < header.index("median")
    assert f"{counted(torch.get_num_threads(), 'thread')}," in said
    assert "one forward pass under inference_mode" in said


def test_speed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(
        capsys, "speed", "test_steps_deit", "--against", "baseline", "--mode", "inference", "training", *QUICK
    )
    assert found["benchmark"] == "speed"
    assert found["command"] == (
        "stepsnet bench speed test_steps_deit --against baseline --batch 2 --mode inference training --dtype fp32 "
        "--rounds 2"
    )
    assert set(found) >= {"machine", "settings", "timed", "peak_gflops", "cases", "accuracy"}
    cases = found["cases"]
    assert isinstance(cases, list)
    assert [(case["mode"], case["batch"], case["dtype"]) for case in cases] == [
        ("inference", 2, "fp32"),
        ("training", 2, "fp32"),
    ]
    assert [one["label"] for one in cases[0]["contenders"]] == ["test_deit", "stepsnet"]
    assert len(cases[0]["contenders"][0]["seconds"]) == 2


def test_the_papers_accuracies_are_listed_with_its_models() -> None:
    from stepsnet.cli.bench import printed_accuracy

    assert printed_accuracy()["steps_swin_tiny"] == 82.4
    assert printed_accuracy()["deit_deep_d96"] == 75.6


def test_a_saved_file_and_a_name_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.safetensors"
    save_model(create_model("test_steps_deit"), file)
    found = measured(capsys, "speed", "test_deit", str(file), *QUICK)
    cases = found["cases"]
    assert isinstance(cases, list)
    assert [(one["label"], one["model"]) for one in cases[0]["contenders"]] == [
        ("test_deit", "test_deit"),
        (str(file), "test_steps_deit"),
    ]


def test_memory_counts_and_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "memory", "test_deit", "test_steps_deit", "--batch", "1", "2"]) == 0
    said = capsys.readouterr().out
    assert "growth 1 → 2" in said
    assert re.search(
        r"test_steps_deit saves \d\.\d\d × the bytes of test_deit for backward, and its total memory grows 1.00 ×", said
    )


def test_depth_prints_exponents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "depth", "test_deit", "--depths", "4", "8", "--widths", "32", "64", *QUICK]) == 0
    said = capsys.readouterr().out
    assert re.search(r"test_deit, inference: time grows as depth\^-?\d\.\d\d, MACs", said)
    assert "±" not in said  # a line through two points has no error
    assert "MACs width^1." in said


def test_depth_of_the_papers_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from stepsnet.research.paper import TABLES, PaperRow, PaperTable

    plain = PaperRow("Swin", "test_swin", {"result": "81.3"})
    steps = PaperRow("Steps-Swin", "test_steps_swin", {"result": "82.4"})
    monkeypatch.setitem(TABLES, "table5b", PaperTable("table5b", "", "", (plain, steps)))
    found = measured(capsys, "depth", "--table", "5b", *QUICK)
    series = found["series"]
    assert isinstance(series, list)
    assert [(line["label"], line["points"][0]["at"], line["points"][0]["accuracy"]) for line in series] == [
        ("Swin", 7, 81.3), ("Steps-Swin", 11, 82.4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "charts"),
    [
        (["speed", "test_deit", "test_steps_deit", "test_swin", *QUICK], ["macs_inference_2_fp32.svg"]),
        (["speed", "test_steps_deit", "--against", "baseline", *QUICK], ["ratio.svg"]),
        (["memory", "test_deit", "--batch", "1", "2"], ["growth.svg", "saved.svg"]),
        (
            ["depth", "test_deit", "--depths", "4", "8", "--widths", *QUICK],
            ["time_depth_inference.svg", "memory_depth.svg"],
        ),
    ],
)
def test_out_gets_json_charts_and_one_page(
    words: list[str], charts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words, "--out", str(tmp_path / "new" / "folder")]) == 0
    folder = tmp_path / "new" / "folder"
    assert str(folder / "report.html") in capsys.readouterr().out
    assert json.loads((folder / "result.json").read_text())["benchmark"] == words[0]
    assert {file.name for file in folder.glob("*.svg")} == set(charts)
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == len(charts)
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", page)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["speed", "deit_tinny"], ["deit_tinny", "deit_tiny"]),
        (["speed"], ["needs at least one model"]),
        (["speed", "steps_deit_tiny", "--against", "timm"], ["timm has no steps_deit_tiny", "--against baseline"]),
        (["speed", "test_transformer", "--against", "timm"], ["timm has no test_transformer"]),
        (["speed", "test_deit", "--against", "baseline"], ["already a plain network", "test_steps_deit"]),
        (["speed", "test_deit", "--against", "tim"], ["tim"]),
        (["speed", "test_deit", "--rounds", "0"], ["--rounds: '0' is not a whole number from 1"]),
        (["speed", "test_deit", "--batch", "0"], ["--batch: '0' is not a whole number from 1"]),
        (["speed", "test_deit", "--fold", "--mode", "training"], ["--fold is for inference"]),
        (["speed", "test_deit", "--against", "openvino", "--mode", "training"], ["cannot be trained"]),
        (["speed", "test_deit", "--depths", "12"], ["--depths is for `stepsnet bench depth`"]),
        (["speed", "test_deit", "--alike"], ["--against timm"]),
        (["speed", "test_steps_deit", "--alike", "--against", "baseline"], ["--against timm"]),
        (["speed", "test_deit", "--out", __file__], ["test_bench.py is a file"]),
        (["memory", "test_deit", "--batch", "32"], ["--batch 32 shows no growth"]),
        (["memory", "test_deit", "--batch", "8", "4"], ["--batch 8 4 shows no growth"]),
        (["depth", "test_deit", "--depths", "0"], ["--depths: '0' is not a whole number from 1"]),
        (["depth", "test_deit", "--depths", "--widths"], ["leave nothing to measure"]),
        (["depth", "test_deit", "--depths", "--widths", "65"], ["cannot have width 65; the nearest is 64"]),
        (["speed", "test_deit", "--fold"], ["nothing to fold in a deit"]),
        (["speed", "test_transformer", "--channels-last"], ["test_transformer takes text"]),
        (["speed", "test_deit", "--against", "timm", "--alike"], ["--alike has no effect without --compile"]),
        (["memory", "test_deit", "--rounds", "9"], ["--rounds is for"]),
        (["depth", "test_steps_deit", "--depths", "10"], ["8 blocks", "scaled to 10 blocks"]),
        (["depth", "test_deit", "--table", "5b"], ["leave out test_deit"]),
        (
            ["depth", "--table", "5b", "--depths", "12"],
            ["--table 5b sets models, depths and widths", "leave out --depths"],
        ),
        (["depth", "--table", "5a", "--widths"], ["leave out --widths"]),
        ([], ["the following arguments are required: what (see"]),
        (["speed", "gone.safetensors"], ["There is no file gone.safetensors"]),
        (["depth", "--batch", "4", "8"], ["one batch size"]),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(
    words: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    for fact in facts:
        assert fact in said.err


def test_without_timm_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr("importlib.import_module", _as_if_there_were_no_timm)
    assert main(["bench", "speed", "test_deit", "--against", "timm", *QUICK]) == 2
    assert "pip install '.[timm]'" in capsys.readouterr().err


def _as_if_there_were_no_timm(name: str, package: str | None = None) -> object:
    if name.partition(".")[0] == "timm":
        raise ModuleNotFoundError(f"No module named {name!r}", name="timm")
    return import_module(name, package)  # torch imports its lazy modules by relative names


def test_threads_apply_only_during_the_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    machine = measured(capsys, "speed", "test_deit", "--against", "eager", "--threads", str(before + 1), *QUICK)[
        "machine"
    ]
    assert isinstance(machine, dict)
    assert machine["threads"] == before + 1
    assert torch.get_num_threads() == before


def test_bf16_on_a_cpu_without_its_instructions_becomes_fp32(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepsnet.cpu.has_bf16", lambda: False)
    assert main(["bench", "speed", "test_deit", "--dtype", "fp32", "bf16", "--json", *QUICK]) == 0
    said = capsys.readouterr()
    assert "This CPU has no bf16 instructions (avx512_bf16, amx_bf16): computing in fp32." in said.err
    assert [case["dtype"] for case in json.loads(said.out)["cases"]] == ["fp32"]


def test_two_points_have_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "depth", "test_deit", "--depths", "2", "4", "--widths", *QUICK]) == 0
    assert "±" not in capsys.readouterr().out
