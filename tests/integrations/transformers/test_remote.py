"""Saved folders load in a process that cannot import stepsnet, from the code in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import torch

from stepsnet.models import create_model
from stepsnet.transformers import from_stepsnet

NAMES = ("test_steps_deit", "test_steps_swin", "test_steps_swinpp", "test_steps_resnet", "test_steps_transformer")
PROGRAM = """
import sys
from pathlib import Path

try:
    import torchvision  # on some machines stepsnet makes it importable, so it comes first
except ImportError:
    pass
for name in [name for name in sys.modules if name.split(".")[0] == "stepsnet"]:
    del sys.modules[name]
sys.modules["stepsnet"] = None

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageClassification

for folder in map(Path, sys.argv[1:]):
    inputs, expected = torch.load(folder / "example.pt")
    auto = AutoModelForCausalLM if inputs.dim() == 2 else AutoModelForImageClassification
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    torch.testing.assert_close(model(inputs).logits, expected, rtol=1e-5, atol=1e-5)
    model.save_pretrained(folder / "again")
    again = auto.from_pretrained(folder / "again", trust_remote_code=True).eval()
    torch.testing.assert_close(again(inputs).logits, expected, rtol=1e-5, atol=1e-5)
"""


def test_folders_load_without_stepsnet(tmp_path: Path) -> None:
    for name in NAMES:
        model = create_model(name).eval()
        inputs = torch.randint(0, 256, (2, 9)) if "transformer" in name else torch.randn(2, 3, 32, 32)
        cast(Any, from_stepsnet(model)).save_pretrained(tmp_path / name)
        torch.save((inputs, model(inputs).detach()), tmp_path / name / "example.pt")
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM, *(str(tmp_path / name) for name in NAMES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
