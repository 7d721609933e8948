"""The macro compiles without graph breaks and exports."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepsnet.macro import ReverseStepsNet, Stack, StepsNet
from tests.macro.nets import Mixing

NETS: dict[str, nn.Module] = {
    "plain": StepsNet([Stack([Mixing(4, 1)]), Stack([Mixing(6, 1), Mixing(6, 1)]), Stack([])], [4, 6, 9], 1),
    "matched_grad": StepsNet([Stack([Mixing(4, -1)]), Mixing(6, -1)], [4, 6], join="matched_grad"),
    "reverse": ReverseStepsNet([Mixing(9, 1), Stack([Mixing(4, 1)])], [9, 4], 1),
}
INPUTS = {"plain": torch.randn(2, 9, 3), "matched_grad": torch.randn(2, 3, 6), "reverse": torch.randn(2, 9)}


@pytest.mark.parametrize("name", NETS)
def test_compiles_without_a_graph_break(name: str) -> None:
    compiled = torch.compile(NETS[name], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(INPUTS[name]), NETS[name](INPUTS[name]))


@pytest.mark.parametrize("name", NETS)
def test_exports(name: str) -> None:
    exported = torch.export.export(NETS[name], (INPUTS[name],))
    torch.testing.assert_close(exported.module()(INPUTS[name]), NETS[name](INPUTS[name]))


def test_the_walk_compiles_too() -> None:
    net = NETS["plain"]
    assert isinstance(net, StepsNet)
    output, states = torch.compile(net.walk, fullgraph=True, backend="aot_eager")(INPUTS["plain"], after=(1,))
    torch.testing.assert_close((output, *states), (net.walk(INPUTS["plain"])[0], net.walk(INPUTS["plain"])[1][1]))
