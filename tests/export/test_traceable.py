"""Layers replaced for tracing compute the same as the originals, for every size.

PyTorch's own tracers take every family.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepsnet.blocks.window import WindowAttention
from stepsnet.export.traceable import AnySizeWindowAttention, traceable
from stepsnet.models import create_model
from tests.models.tiny import shake

FAMILIES = [f"test_steps_{family}" for family in ("deit", "resnet", "swin", "swinpp", "transformer")]


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("side", [(3, 3), (3, 4), (6, 9), (7, 5), (8, 3), (2, 5), (2, 2)])
def test_window_attention_by_gather_equals_window_attention(side: tuple[int, int], shifted: bool) -> None:
    attention = WindowAttention(8, 2, window=3, shifted=shifted).eval()
    x = torch.randn(2, *side, 8)
    with torch.no_grad():
        torch.nn.init.normal_(attention.bias_table)
        torch.testing.assert_close(AnySizeWindowAttention(attention)(x), attention(x), rtol=0, atol=1e-5)


def test_the_original_model_is_not_changed() -> None:
    model = shake(create_model("test_swin"))
    before = [type(module) for module in model.modules()]
    copied = traceable(model)
    assert [type(module) for module in model.modules()] == before
    assert model.training
    assert not copied.training
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in copied.parameters()} == own


def example(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    model = create_model(name).eval()
    x = torch.randint(256, (2, 16)) if "transformer" in name else torch.randn(2, *model.input_size)
    return model, x


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torch_jit_traces_every_family(name: str) -> None:
    model, x = example(name)
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
        torch.testing.assert_close(traced(x), model(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_torch_export_gives_the_fx_graph_of_every_family(name: str) -> None:
    model, x = example(name)
    with torch.no_grad():
        graph = torch.export.export(model, (x,)).module()
        assert isinstance(graph, torch.fx.GraphModule)
        torch.testing.assert_close(graph(x), model(x), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of the exporter's own libraries
def test_a_users_own_onnx_export_works(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="runs the exported file")
    model, x = example("test_steps_resnet")
    torch.onnx.export(model, (x,), tmp_path / "m.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=0, atol=1e-5)
