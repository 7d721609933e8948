"""Every family compiles without graph breaks and exports, with both macros and joins; equal blocks share code."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stepsnet.models import compile_blocks, create_model
from stepsnet.models.optimise import VARIANTS_OF_A_KIND
from tests.models.tiny import VARIANTS, example, shake, variant

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
    model = shake(create_model("test_steps_deit", drop_path_rate=0.1, join="matched_grad"))
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
        exported = torch.export.export(
            model, (example(model),), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
        )
        x = example(model, batch=5)
        torch.testing.assert_close(exported.module()(x), model(x))


class Counter:
    """A backend that compiles nothing and counts what it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.fixture
def counter() -> Iterator[Counter]:
    from torch._dynamo import config

    torch.compiler.reset()
    with config.patch(recompile_limit=config.recompile_limit):
        yield Counter()


# Two widths, or in Swin one with a kind of its own for shifted windows.
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch hides it itself, unless it is an error
@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [
        ("test_steps_deit", {"plan": "16x4, 32x4"}, 2),
        ("test_steps_transformer", {"plan": "16x4, 32x4"}, 2),
        ("test_swin", {"depths": (4,)}, 2),
        ("test_steps_resnet", {"depths": (4,), "plan": "4x4, 8x4"}, 2),
    ],
)
def test_equal_blocks_share_compiled_code_at_any_depth_and_batch_size(
    name: str, options: dict[str, Any], kinds: int, counter: Counter
) -> None:
    model = compile_blocks(create_model(name, **options, drop_path_rate=0.2), backend=counter)
    model(example(model, batch=2)).square().mean().backward()
    assert counter.graphs == kinds
    model(example(model, batch=3))
    assert counter.graphs == 2 * kinds  # now for any batch size
    for batch in (4, 7):
        model(example(model, batch=batch))
    assert counter.graphs == 2 * kinds


@pytest.mark.parametrize("name", ["test_deit", "test_swin", "test_resnet", "test_transformer"])
def test_a_model_compiled_for_any_batch_is_compiled_once(name: str, counter: Counter) -> None:
    model = create_model(name).eval()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = example(model, batch=batch)
            torch._dynamo.mark_dynamic(x, 0)  # an error where the code fixes the size after all
            compiled(x)
    assert counter.graphs == 1


def test_a_compiled_language_model_takes_texts_of_two_lengths() -> None:
    torch.compiler.reset()
    model = create_model("test_steps_transformer").eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for length in (12, 20):
            ids = example(model, length)
            torch.testing.assert_close(compiled(ids), model(ids))


@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [("test_steps_deit", {"plan": "16x4, 32x4"}, 2), ("test_swin", {"depths": (4,)}, 2), ("test_transformer", {}, 1)],
)
def test_the_recompile_limit_grows_with_the_kinds_of_blocks_also_in_older_torch(
    name: str, options: dict[str, Any], kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = SimpleNamespace(cache_size_limit=8)
    monkeypatch.setattr("torch._dynamo.config", older)
    monkeypatch.setattr("torch.nn.Module.compile", lambda *_, **__: None)
    compile_blocks(create_model(name, **options))
    assert older.cache_size_limit == kinds * VARIANTS_OF_A_KIND


@pytest.mark.parametrize("name", ["test_steps_swin", "test_steps_transformer"])
def test_compiled_blocks_compute_the_same(name: str, counter: Counter) -> None:
    model = shake(create_model(name)).eval()
    x = example(model)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(compile_blocks(model, backend=counter)(x), expected)
    assert counter.graphs


def test_compiled_stochastic_depth_drops_whole_branches_at_its_rate_and_keeps_the_mean(counter: Counter) -> None:
    model = compile_blocks(create_model("test_deit", drop_path_rate=0.5), backend=counter)
    drop_path = model.get_submodule("net.steps.0.blocks.3.mlp.drop_path")
    x = torch.ones(4000, 2, 3)
    y = drop_path(x)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y.flatten(1).amin(dim=1), y.flatten(1).amax(dim=1))
    assert float(y.mean()) == pytest.approx(1.0, abs=0.1)  # six deviations
    assert torch.equal(drop_path.eval()(x), x)
