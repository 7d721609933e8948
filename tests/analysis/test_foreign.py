"""Residual stacks of other libraries, tiny and random: found and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stepsnet.analysis import gradient_flow, shortcut_ratio, step_contribution, width_use
from stepsnet.optional.torchvision import import_torchvision
from tests.analysis.nets import no_hooks

Case = Callable[[], tuple[nn.Module, Any, int]]


def timm_model(name: str, side: int, blocks: int, **options: Any) -> Case:
    def make() -> tuple[nn.Module, Any, int]:
        import_torchvision()
        import timm

        return (
            timm.create_model(name, pretrained=False, num_classes=10, **options),
            torch.randn(2, 3, side, side),
            blocks,
        )

    return make


def llama() -> tuple[nn.Module, Any, int]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    return LlamaForCausalLM(config), torch.randint(0, 64, (2, 8)), 3


def gpt2() -> tuple[nn.Module, Any, int]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=3, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config), torch.randint(0, 64, (2, 8)), 3


def own_list() -> tuple[nn.Module, Any, int]:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.linear(self.norm(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    return Net(), torch.randn(4, 16), 5


SWIN = {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (1, 2)}
CASES = [
    pytest.param(
        timm_model("vit_tiny_patch16_224", 32, 3, img_size=32, patch_size=8, embed_dim=24, depth=3), id="timm-vit"
    ),
    pytest.param(timm_model("swin_tiny_patch4_window7_224", 56, 4, **SWIN), id="timm-swin"),
    pytest.param(timm_model("convnext_atto", 32, 8, depths=(2, 2, 2, 2), dims=(8, 16, 24, 32)), id="timm-convnext"),
    pytest.param(timm_model("resnet34", 32, 12, layers=(4, 4, 4, 4), channels=(8, 16, 24, 32)), id="timm-resnet"),
    pytest.param(llama, id="llama"),
    pytest.param(gpt2, id="gpt2"),
    pytest.param(own_list, id="own-list"),
]


@pytest.mark.parametrize("case", CASES)
def test_every_block_is_measured(case: Case) -> None:
    model, x, blocks = case()
    model.train()
    ratio, flow = shortcut_ratio(model, x), gradient_flow(model, x, probes=1)
    assert len(ratio.gamma) == len(flow.dz) == len(flow.block_norms) == blocks
    assert all(0 < value < math.inf for value in (*ratio.gamma, *flow.gain, *flow.block_norms, *flow.activation_norms))
    assert flow.gamma == pytest.approx(ratio.gamma, rel=1e-4)
    assert all(math.isfinite(value) for value in (*step_contribution(model, x).norm, *width_use(model, x).rank))
    assert model.training
    assert no_hooks(model)


@pytest.mark.parametrize("case", [llama, gpt2])
def test_the_first_block_adds_to_the_embedding(case: Case) -> None:
    """γ of block 1 by hand: hidden states as transformers itself returns them."""
    model, x, _ = case()
    model.eval()
    with torch.no_grad():
        first, second, *_ = model(x, output_hidden_states=True).hidden_states
    expected = float((first.std(-1, correction=0) / second.std(-1, correction=0)).mean())
    assert shortcut_ratio(model, x).gamma[0] == pytest.approx(expected, rel=1e-5)
