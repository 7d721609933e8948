"""A file with wrong outputs never appears; what cannot be exported raises one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stepsnet.errors import UsageError
from stepsnet.export import at_size, export_model, has_batch_norms, openvino_callable, program, to_openvino
from stepsnet.export.check import FORMATS, Difference, Format, check_shapes
from stepsnet.export.program import Traced, free_axes, trace
from stepsnet.models import create_model
from tests.models.tiny import shake


def write_dummy(traced: Traced, path: Path) -> Path:
    path.write_text("a file")
    return path


def zeros(path: Path) -> object:
    return lambda x: torch.zeros(len(x), 10)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "onnx", Format(".onnx", write_dummy, zeros))  # type: ignore[arg-type]


@pytest.mark.usefixtures("wrong")
def test_a_wrong_file_never_appears(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not compute what the model computes.*the file was removed"):
        export_model(shake(create_model("test_resnet")), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("wrong")
def test_a_wrong_file_does_not_replace_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("before")
    with pytest.raises(UsageError):
        export_model(shake(create_model("test_resnet")), path)
    assert path.read_text() == "before"


def test_a_nan_output_fails_the_check() -> None:
    assert not Difference((1,), float("nan"), 1.0).holds


def test_the_tolerance_grows_with_outputs_above_one() -> None:
    assert Difference((1,), 9e-4, 10.0).holds
    assert not Difference((1,), 2e-4, 0.1).holds


def test_a_file_is_checked_with_other_batches_and_sizes() -> None:
    axes = free_axes(create_model("test_swin"), dynamic=True, any_size=True)
    shapes = check_shapes((2, 3, 48, 48), axes)
    assert shapes == [(2, 3, 48, 48), (1, 3, 48, 48), (3, 3, 48, 48), (2, 3, 64, 48), (2, 3, 48, 64), (2, 3, 32, 32)]


def test_axes_are_printed_with_their_ranges() -> None:
    axes = free_axes(create_model("swin_tiny", device="meta"), dynamic=True, any_size=True)
    words = ["batch 1 … 4096", "height 224 … 1024 in steps of 32", "width 224 … 1024 in steps of 32"]
    assert [str(axis) for axis in axes] == words


def test_windows_larger_than_the_last_map_fix_the_size() -> None:
    model = create_model("test_swin", window_size=4)
    assert [axis.name for axis in free_axes(model, dynamic=True, any_size=True)] == ["batch"]


def test_deit_is_exported_at_another_size(tmp_path: Path) -> None:
    model = shake(create_model("test_deit")).eval()
    x = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        expected = model(x)
        at_size(model, 40, 56)
        torch.testing.assert_close(model(x), expected)
    exported = export_model(model, tmp_path / "model.pt2", form="torch-export")
    assert exported.differences[0].shape == (2, 3, 40, 56)


@pytest.mark.parametrize(
    ("path", "form", "sentence"),
    [
        ("model.onx", "onnx", r"ends in \.onnx"),
        ("model.onnx", "onx", "no format 'onx'; nearest: onnx"),
        ("nowhere/model.onnx", "onnx", "there is no folder"),
    ],
)
def test_invalid_arguments_raise_one_clear_error(path: str, form: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        export_model(create_model("test_deit"), tmp_path / path, form=form)


@pytest.mark.parametrize(
    ("how", "held"), [({"dtype": torch.bfloat16}, "bfloat16 on cpu"), ({"device": "meta"}, "float32 on meta")]
)
def test_a_model_with_another_dtype_or_device_is_refused(how: dict[str, Any], held: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"is in {held}; use model\.float\(\)\.cpu\(\)"):
        export_model(create_model("test_deit").to(**how), tmp_path / "model.onnx")


def test_tracing_works_on_torch_versions_without_the_size_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "shape_config", object())
    assert [axis.name for axis in program.trace(create_model("test_deit")).axes] == ["batch"]


def test_openvino_refuses_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"reads \.xml"):
        to_openvino(create_model("test_resnet"), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="no file"):
        openvino_callable(tmp_path / "model.xml")
    (tmp_path / "model.xml").write_text("")
    with pytest.raises(UsageError, match="f32, bf16, f16, not in 'int3'"):
        openvino_callable(tmp_path / "model.xml", precision="int3")


def test_folding_without_batch_norms_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to fold in a swin"):
        has_batch_norms(create_model("test_swin"))


def test_maps_of_one_pixel_are_refused() -> None:
    model = create_model("test_swin").eval()
    at_size(model, 16, 16)
    with pytest.raises(UsageError, match="with inputs of 3×16×16, as for maps of one pixel; give a larger size"):
        trace(model)


def test_an_image_size_for_a_language_model_is_refused() -> None:
    with pytest.raises(UsageError, match="takes text"):
        at_size(create_model("test_transformer"), 32, 32)
