"""Convolutions of every width run forward and backward in both layouts without crashing the interpreter, on one thread.

PyTorch's strided 1×1 convolution writes past its buffers (docs/reference/upstream). No model may reach it. Each
case runs in a process of its own, because a corrupted heap kills the process.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RESNETS = """
from stepsnet.models.resnet import ResNet
for width in range(1, 65):  # kernels 7, 3 and 1, strides 1 and 2
    net = ResNet(depths=(1, 1), embed_dim=width, in_chans=1 + width % 8, num_classes=2, bottleneck={bottleneck})
    run(net, torch.randn(2, 1 + width % 8, 32, 32))
"""
PATCHES = """
from stepsnet.blocks.layers import PatchEmbed, depthwise
for width in range(1, 65):
    for patch in (1, 3, 7):
        run(PatchEmbed(width, 65 - width, patch), torch.randn(2, width, 14, 14))
    run(depthwise(width), torch.randn(2, width, 8, 8))
"""
CHILD = """
import torch
torch.set_num_threads(1)

def run(module, x):
    for layout in (torch.contiguous_format, torch.channels_last):
        module.to(memory_format=layout)
        x = x.contiguous(memory_format=layout).requires_grad_()
        for _ in range(3):
            module(x).sum().backward()
"""
CASES = {
    "basic": RESNETS.format(bottleneck=False),
    "bottleneck": RESNETS.format(bottleneck=True),
    "patches and depthwise": PATCHES,
}
AVX2 = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.mark.parametrize("case", CASES)
def test_no_width_crashes(case: str) -> None:
    command = [sys.executable, "-c", CHILD + CASES[case]]
    found = subprocess.run(command, env={**os.environ, **AVX2}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
