"""Tables, charts and sentences of made-up benchmark results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stepsnet.report.bench import bench_charts, bench_report, findings, tables_of, times
from stepsnet.report.chart import BarChart, LineChart

MACHINE = {"cpu": "Some CPU", "cores": 2, "threads": 2, "instructions": "AVX2", "bf16_instructions": [],
           "torch": "2.13.0", "date": "2026-01-01"}  # fmt: skip


def spread(median: float) -> dict[str, float]:
    return {"median": median, "lower": 0.9 * median, "upper": 1.1 * median}


def contender(model: str, macs: int, ratio: float = 1.0) -> dict[str, Any]:
    return {"label": model, "model": model, "macs": macs, "time": spread(0.2), "ratio": spread(ratio),
            "ratio_per_mac": spread(ratio / 2), "throughput": 1e11 / macs,
            "gflops": 50.0, "share_of_peak": 0.25, "difference": None}  # fmt: skip


@pytest.fixture
def zoo() -> dict[str, Any]:
    return made_up_zoo()


def made_up_zoo() -> dict[str, Any]:
    giga = 10**9
    names = {
        "deit_tiny": giga,
        "deit_small": 4 * giga,
        "steps_deit_tiny": giga + 1,
        "steps_deit_small": 5 * giga,
        "resnet18": 2 * giga,
    }
    case = {"model": None, "mode": "inference", "batch": 8, "dtype": "fp32", "unit": "images",
            "contenders": [contender(name, macs, 1.5) for name, macs in names.items()]}  # fmt: skip
    accuracy = {"deit_tiny": 72.2, "deit_small": 79.9, "steps_deit_tiny": 73.2}
    return {"benchmark": "speed", "settings": {"against": []}, "cases": [case], "accuracy": accuracy}


def test_each_family_and_kind_has_a_line_in_order_of_cost(zoo: dict[str, Any]) -> None:
    chart = bench_charts(zoo)["macs_inference_8_fp32"]
    assert isinstance(chart, LineChart)
    assert [line.label for line in chart.lines] == ["deit", "steps deit", "resnet"]
    assert [list(line.x) for line in chart.lines[:2]] == [[1.0, 4.0], [1.000000001, 5.0]]
    assert list(chart.lines[0].names) == ["deit_tiny", "deit_small"]


def test_only_models_with_a_printed_accuracy_are_in_figure_6a(zoo: dict[str, Any]) -> None:
    chart = bench_charts(zoo)["accuracy_inference_8_fp32"]
    assert isinstance(chart, LineChart)
    assert [line.label for line in chart.lines] == ["deit", "steps deit"]


def test_ratios_have_their_quartiles_as_whiskers_and_a_line_at_one(zoo: dict[str, Any]) -> None:
    chart = bench_charts({**zoo, "settings": {"against": ["timm"]}})["ratio"]
    assert isinstance(chart, BarChart)
    assert chart.reference == 1.0
    assert list(chart.spans) == [pytest.approx((1.35, 1.65))] * 4


def test_a_ratio_comes_with_its_quartiles_and_per_mac(zoo: dict[str, Any]) -> None:
    assert (
        findings(zoo)[0]
        == "inference, batch 8: deit_small is 1.50 × deit_tiny (quartiles 1.35 … 1.65); 0.75 × per MAC."
    )


def test_the_ratio_comes_before_the_time(zoo: dict[str, Any]) -> None:
    (table,) = tables_of(zoo)
    assert table.titles[:6] == ["case", "contender", "speed ×", "lower quartile", "per MAC ×", "lower quartile per MAC"]
    assert table.rows[0][:4] == ["inference, batch 8", "deit_tiny", "reference", ""]
    assert table.rows[1][:6] == ["", "deit_small", "1.50", "1.35", "0.75", "0.68"]


def test_the_header_of_the_page_has_the_verdict_and_the_key_numbers(zoo: dict[str, Any], tmp_path: Path) -> None:
    document = {**zoo, "machine": MACHINE, "command": "stepsnet bench speed"}
    text = bench_report(document, tmp_path).read_text(encoding="utf-8")
    header = text[text.index("<header") : text.index("</header>")]
    assert findings(zoo)[0] in header
    assert re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", header) == [
        ("median speed ratio", "1.50 ×"), ("lowest", "1.50 ×"), ("highest", "1.50 ×")
    ]  # fmt: skip
    assert text.count(findings(zoo)[0]) == 1
    assert "stepsnet bench speed" in text


def test_less_memory_is_a_ratio_below_one() -> None:
    rows = [
        {"model": "plain", "mode": "training", "growth": 20, "saved_per_input": 4},
        {"model": "steps", "mode": "training", "growth": 10, "saved_per_input": 3},
    ]
    said = findings({"benchmark": "memory", "rows": rows})
    assert said == ["steps saves 0.75 × the bytes of plain for backward, and its total memory grows 0.50 × as much."]


@pytest.mark.parametrize("growths", [(-20, 10), (20, -10), (0, 10)])
def test_memory_that_does_not_grow_has_no_ratio(growths: tuple[int, int]) -> None:
    """The growth of a tiny model is noise and can be negative."""
    rows = [{"model": name, "mode": "training", "growth": growth, "saved_per_input": 4}
            for name, growth in zip(("plain", "steps"), growths, strict=True)]  # fmt: skip
    said = findings({"benchmark": "memory", "rows": rows})
    assert said == ["steps saves 1.00 × the bytes of plain for backward."]


def test_a_small_ratio_keeps_two_digits() -> None:
    assert [times(ratio) for ratio in (1.254, 0.98, 0.0512, 0.00117)] == ["1.25", "0.98", "0.051", "0.0012"]
