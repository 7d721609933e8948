"""Files in each format compute what the model computes: all families, both joins, the reverse macro, other input
sizes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from stepsnet.export import (
    load_torch_export,
    onnx_facts,
    onnx_session,
    openvino_callable,
    openvino_facts,
    to_openvino,
    to_torch_export,
    torch_export_facts,
)
from stepsnet.export.check import check_shapes, compare
from stepsnet.export.formats import to_onnx, write_onnx
from stepsnet.export.program import Traced, trace, write_torch_export
from stepsnet.models import Model, create_model, fold
from tests.models.tiny import shake

# Every family with few blocks: exporters take up to a second per block.
CASES: dict[str, dict[str, Any]] = {
    "test_deit": {"depth": 1},
    "test_steps_deit": {"plan": "16x1, 32x1", "macro": "reverse"},
    "test_steps_swin": {"plan": "6x2; 12x1; 12x1, 24x1; 24x1"},
    "test_swinpp": {"depths": (1, 1, 1, 1)},
    "test_resnet": {},
    "test_steps_resnet": {"join": "matched_grad"},
    "test_transformer": {"depth": 1},
    "test_steps_transformer": {"plan": "16x1, 32x1", "join": "matched_grad"},
}


@cache
def case(name: str) -> tuple[Model, Traced]:
    """A model, traced once for all formats."""
    model = shake(create_model(name, **CASES[name])).eval()
    return model, trace(model)


def check(model: Model, run: Callable[[Tensor], Tensor], *shapes: tuple[int, ...]) -> None:
    for difference in compare(model, run, list(shapes)):
        assert difference.holds, difference


@pytest.mark.parametrize("name", CASES)
def test_onnx_runs_any_batch(name: str, tmp_path: Path) -> None:
    model, traced = case(name)
    path = write_onnx(traced, tmp_path / "model.onnx")
    check(model, onnx_session(path, 1), *check_shapes((2, *model.input_size), traced.axes))
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("name", CASES)
def test_torch_export_runs_any_batch(name: str, tmp_path: Path) -> None:
    model, traced = case(name)
    path = write_torch_export(traced, tmp_path / "model.pt2")
    check(model, load_torch_export(path), *check_shapes((2, *model.input_size), traced.axes))


@pytest.mark.parametrize("name", ["test_steps_deit", "test_resnet"])
def test_openvino_runs_any_batch(name: str, tmp_path: Path) -> None:
    if name == "test_steps_deit" and os.environ.get("ONEDNN_MAX_CPU_ISA") == "SSE41":
        pytest.skip("with this limit OpenVINO returns nothing for a DeiT")
    model, _ = case(name)
    path = to_openvino(model, tmp_path / "model.xml")
    check(model, openvino_callable(path, 1), (1, 3, 32, 32), (3, 3, 32, 32))
    assert {file.name for file in tmp_path.iterdir()} == {"model.xml", "model.bin"}
    assert openvino_facts(path)["name"] == name


def test_an_output_of_another_shape_is_a_difference() -> None:
    model, _ = case("test_resnet")
    (difference,) = compare(model, lambda x: model(x)[:0], [(1, 3, 32, 32)])
    assert not difference.holds


def test_a_swin_file_takes_other_sizes(tmp_path: Path) -> None:
    """From one window in the last map upwards, for unequal sides, with and without padding to whole windows."""
    model = shake(create_model("test_swin", depths=(1, 2), window_size=3, img_size=12)).eval()
    path = to_onnx(model, tmp_path / "model.onnx", any_size=True)
    check(model, onnx_session(path, 1), (2, 3, 12, 12), (1, 3, 16, 28), (3, 3, 24, 12))
    assert json.loads(onnx_facts(path)["free"]) == {
        "batch": [1, 4096, 1],
        "height": [12, 1024, 4],
        "width": [12, 1024, 4],
    }


def test_a_resnet_file_takes_any_size_from_32_upwards(tmp_path: Path) -> None:
    model, _ = case("test_steps_resnet")
    path = to_torch_export(model, tmp_path / "model.pt2", any_size=True)
    check(model, load_torch_export(path), (1, 3, 32, 32), (2, 3, 33, 70))


def test_a_language_model_file_takes_any_length(tmp_path: Path) -> None:
    model, _ = case("test_steps_transformer")
    path = to_torch_export(model, tmp_path / "model.pt2", any_size=True)
    check(model, load_torch_export(path), (1, 1), (3, 2), (2, 50))


def test_folded_batch_norms_are_in_the_file(tmp_path: Path) -> None:
    model, _ = case("test_resnet")
    path = to_torch_export(fold(model), tmp_path / "model.pt2")
    run = load_torch_export(path)
    assert not any("running_mean" in name for name in run.state_dict())
    check(model, run, (2, 3, 32, 32))


def test_a_torch_export_file_holds_the_facts(tmp_path: Path) -> None:
    model, traced = case("test_deit")
    facts = torch_export_facts(write_torch_export(traced, tmp_path / "model.pt2"))
    assert facts == traced.facts
    assert (facts["name"], facts["plan"], facts["num_classes"]) == ("test_deit", model.plan, "10")
    assert json.loads(facts["mean"]) == pytest.approx([0.485, 0.456, 0.406])
