"""Every family compiles without graph breaks and exports, under both macros and both joins."""

from __future__ import annotations

import pytest
import torch

from stepsnet.families import create_model
from tests.families.zoo import VARIANTS, example, shake, variant

# The other macro and the other join are the same code in every family.
TRACED = [key for key in VARIANTS if "-" not in key or key.startswith("test_steps_deit-")]
every_traced = pytest.mark.parametrize("key", TRACED)


@every_traced
def test_compiles_without_a_graph_break(key: str) -> None:
    torch.compiler.reset()
    model = shake(variant(key)).eval()
    x = example(model)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x))


def test_a_training_step_compiles_without_a_graph_break() -> None:
    torch.compiler.reset()
    model = shake(create_model("test_steps_deit", drop_path_rate=0.1, join="matched"))
    torch.compile(model, fullgraph=True, backend="aot_eager")(example(model)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@every_traced
def test_exports(key: str) -> None:
    model = shake(variant(key)).eval()
    x = example(model)
    with torch.no_grad():
        exported = torch.export.export(model, (x,), strict=False)
        torch.testing.assert_close(exported.module()(x), model(x))


@pytest.mark.parametrize("key", ["test_steps_deit", "test_steps_swin", "test_steps_resnet", "test_steps_transformer"])
def test_exports_for_any_batch(key: str) -> None:
    model = shake(variant(key)).eval()
    with torch.no_grad():
        exported = torch.export.export(model, (example(model),), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
        x = example(model, batch=5)
        torch.testing.assert_close(exported.module()(x), model(x))
