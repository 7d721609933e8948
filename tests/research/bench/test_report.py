"""Pictures and words of results that were made up."""

from __future__ import annotations

from typing import Any

import pytest

from stepsnet.report.bench import bench_figures
from stepsnet.report.bench_tables import WordTable, findings, tables_of


def spread(median: float) -> dict[str, float]:
    return {"median": median, "lower": 0.9 * median, "upper": 1.1 * median}


def contender(model: str, macs: int, ratio: float = 1.0) -> dict[str, Any]:
    return {"label": model, "model": model, "macs": macs, "time": spread(0.2), "ratio": spread(ratio), "ratio_per_mac": spread(ratio / 2),
            "throughput": 1e11 / macs, "gflops": 50.0, "share_of_peak": 0.25, "difference": None}  # fmt: skip


@pytest.fixture
def zoo() -> dict[str, Any]:
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


def test_a_line_a_family_and_kind_in_the_order_of_cost(zoo: dict[str, Any]) -> None:
    _, figure = bench_figures(zoo)["macs_inference_8_fp32"]
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["deit", "steps deit", "resnet"]
    assert sorted(figure.axes[0].get_xticks()) == [1.0, 2.0, 5.0]


def test_only_models_with_a_printed_accuracy_are_in_figure_6a(zoo: dict[str, Any]) -> None:
    _, figure = bench_figures(zoo)["accuracy_inference_8_fp32"]
    assert figure.axes[0].get_legend_handles_labels()[1] == ["deit", "steps deit"]


def test_the_ratio_is_said_with_its_quartiles_and_per_mac(zoo: dict[str, Any]) -> None:
    assert (
        findings(zoo)[0]
        == "inference, batch 8: deit_small is 1.50 × deit_tiny (quartiles 1.35 … 1.65); 0.75 × per MAC."
    )


def test_the_ratio_stands_before_the_time(zoo: dict[str, Any]) -> None:
    (table,) = tables_of(zoo)
    assert table.columns[:6] == ("case", "contender", "speed ×", "lower quartile", "per MAC ×", "lower quartile")
    assert table.rows[0][:4] == ["inference, batch 8", "deit_tiny", "reference", ""]
    assert table.rows[1][:6] == ["", "deit_small", "1.50", "1.35", "0.75", "0.68"]


def test_less_memory_is_a_ratio_below_one() -> None:
    rows = [
        {"model": "plain", "mode": "training", "growth": 20, "saved_per_input": 4},
        {"model": "steps", "mode": "training", "growth": 10, "saved_per_input": 3},
    ]
    said = findings({"benchmark": "memory", "rows": rows})
    assert said == ["steps saves 0.75 × the bytes of plain for backward, and its total memory grows 0.50 × as much."]


def test_markdown_aligns_numbers_to_the_right() -> None:
    table = WordTable("", ("name", "number"), [["a", "1"]])
    assert table.markdown() == "| name | number |\n| --- | ---: |\n| a | 1 |"
