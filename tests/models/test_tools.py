"""Tools of torch and accelerate that look into a model work on every vision family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, prune

from stepsnet.models import create_model
from tests.models.tiny import VISION, example, vision

STEPS = [name for name in VISION if "steps" in name]
every_family = pytest.mark.parametrize("name", STEPS)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Layers of exactly the plain classes, which is what tools compare."""
    return [module for module in model.modules() if type(module) in (nn.Linear, nn.Conv2d)]


@every_family
def test_empty_weights_of_accelerate(name: str) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    with accelerate.init_empty_weights():
        model = create_model(name)
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore")  # torch announces the end of quantize_dynamic
@every_family
def test_dynamic_quantisation_finds_every_linear_layer(name: str) -> None:
    model = vision(name).eval()
    quantised: Any = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    found = sum(isinstance(module, torch.ao.nn.quantized.dynamic.Linear) for module in quantised.modules())
    assert found == sum(isinstance(module, nn.Linear) for module in model.modules())
    assert quantised(example(model)).shape == (2, 10)


@every_family
def test_layers_are_the_plain_classes_that_counters_look_for(name: str) -> None:
    model = vision(name)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d))
    assert sum(p.numel() for layer in layers_of(model) for n, p in layer.named_parameters() if n == "weight") == weights


@every_family
def test_vectors_second_order_optimisers_pruning_and_files(name: str, tmp_path: Path) -> None:
    model = vision(name)
    x = example(model)
    assert parameters_to_vector(model.parameters()).numel() == sum(p.numel() for p in model.parameters())
    safetensors.torch.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def loss() -> Tensor:
        optimiser.zero_grad()
        value: Tensor = model(x).square().mean()
        value.backward()
        return value

    optimiser.step(loss)
    layers = layers_of(model)
    prune.global_unstructured([(layer, "weight") for layer in layers], prune.L1Unstructured, amount=0.5)
    kept = torch.cat([layer.get_buffer("weight_mask").flatten() for layer in layers])
    assert float(kept.mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use, in jvp
@every_family
def test_forward_derivatives_and_ensembles(name: str) -> None:
    """torch's fused CPU attention has neither; with `sdpa_kernel(MATH)` both work."""
    model, other = vision(name).eval(), vision(name).eval()
    x = example(model)
    with sdpa_kernel(SDPBackend.MATH):
        assert jvp(model, (x,), (x,))[1].shape == (2, 10)
        parameters, buffers = stack_module_state([model, other])

        def run(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
            out: Tensor = functional_call(model, (p, b), (x,))
            return out

        torch.testing.assert_close(vmap(run)(parameters, buffers)[1], other(x))
        torch.testing.assert_close(vmap(lambda image: model(image[None])[0])(x), model(x))


@pytest.mark.filterwarnings("ignore")  # torch announces the end of jit, and what a trace fixes
@every_family
def test_jit_trace(name: str) -> None:
    model = vision(name).eval()
    x = example(model)
    torch.testing.assert_close(torch.jit.trace(model, x)(x), model(x))


@pytest.mark.filterwarnings("ignore")  # of the exporter, for its developers
@every_family
def test_a_users_own_onnx_export(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    small = {"depths": (2,), "plan": "6x1, 8x2"}  # the time grows with the number of blocks
    options: dict[str, Any] = {"plan": "16x1, 32x1"} if name == "test_steps_deit" else small
    model = vision(name, **options).eval()
    x = example(model)
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "method"), [("test_swin", "forward"), ("test_swinpp", "forward_intermediates")])
def test_swin_compiled_for_dynamic_shapes_has_code_for_one_image_size_and_any_batch(name: str, method: str) -> None:
    """Symbols for height and width would take minutes to compile."""
    torch.compiler.reset()
    graphs = 0

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    model = vision(name, depths=(2,)).eval()
    run: Any = getattr(model, method)
    compiled: Any = torch.compile(run, dynamic=True, backend=backend, fullgraph=True)
    with torch.no_grad():
        for side, batch in ((32, 2), (32, 3), (48, 2), (32, 4)):
            x = example(model, side, batch=batch)
            torch.testing.assert_close(compiled(x), run(x))
    assert graphs == 2
