"""A user's script: `make lint` checks that the public names have the types it relies on. It is not run."""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

import stepsnet
from stepsnet.integrations.pretrained import Started
from stepsnet.models import FeatureBackbone, Model

model = stepsnet.create_model("steps_deit_small", num_classes=10)
assert_type(model, Model)
model.reset_classifier(5)
logits: Tensor = model(torch.randn(1, 3, 224, 224))
assert_type(model.plan, str)
assert_type(stepsnet.cost_of(model).params, int)
assert_type(stepsnet.load_pretrained(model, "runs/first"), Started)
assert_type(stepsnet.freeze(model, "stage1"), list[str])

backbone = stepsnet.create_model("steps_swin_tiny", features_only=True)
assert_type(backbone, FeatureBackbone)
assert_type(backbone.feature_info.channels(), list[int])

net = stepsnet.StepsNet.from_blocks(lambda width, _index: nn.Linear(width, width), "8x2, 16x1")
assert_type(net, stepsnet.StepsNet)
assert_type(stepsnet.analysis.shortcut_ratio(model, torch.randn(2, 3, 224, 224)).gamma, list[float])
