"""timm's own model tests on tiny models, each as it is ("plain") and stepified ("stepped").

    git clone --depth 1 https://github.com/huggingface/pytorch-image-models && cd pytorch-image-models
    cp STEPSNET/tests/checks/timm_stepped.py tests/test_steps.py
    PYTHONPATH=.:STEPSNET HF_HUB_OFFLINE=1 python -m pytest -c /dev/null --rootdir . tests/test_steps.py

The tests are in timm's source tree and not in its package. Those that download weights are left out.
docs/results/surgery.md has the counts.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from stepsnet.optional.torchvision import import_torchvision

import_torchvision()

import timm  # noqa: E402
from timm.models._features import FeatureGetterNet  # noqa: E402

from stepsnet.surgery import stepify  # noqa: E402
from stepsnet.surgery.stepify import find_host  # noqa: E402
from stepsnet.surgery.support import two_steps  # noqa: E402

TINY: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"embed_dim": 64, "depth": 4, "num_heads": 4},
    "swin_tiny_patch4_window7_224": {"embed_dim": 16, "depths": (1, 1, 2, 2), "num_heads": (1, 2, 4, 8)},
    "convnext_atto": {"dims": (16, 24, 32, 64), "depths": (1, 1, 2, 2)},
    "resnet18": {"channels": (8, 16, 32, 64), "layers": (2, 2, 3, 3)},
}
list_models, create_model = timm.list_models, timm.create_model


def list_tiny(*args: Any, **kwargs: Any) -> list[str]:
    return sorted(TINY.keys() & {*list_models(*args, **{**kwargs, "include_tags": False})})


def create_tiny(name: str, **kwargs: Any) -> Any:
    model: Any = create_model(name, **TINY[name], **kwargs)
    if not suite.stepped:
        return model
    if "features_only" not in kwargs:
        return stepped(model, name)
    wrapped = stepped(create_model(name, **TINY[name]), name)  # timm wraps inside create_model, in this way
    options: dict[str, Any] = {"out_indices": model.feature_info.out_indices}
    if not isinstance(model, FeatureGetterNet):
        options["flatten_sequential"] = any("." in path for path in model.feature_info.module_name())
        options["output_fmt"] = getattr(wrapped, "output_fmt", "NCHW")
    made = type(model)(wrapped, **options)
    made.default_cfg = wrapped.default_cfg
    return made


def stepped(model: Any, name: str) -> Any:
    return stepify(model, two_steps(find_host(model, options=TINY[name])), options=TINY[name])


timm.list_models = list_tiny
suite: Any = importlib.import_module("tests.test_models")
suite.create_model = create_tiny
globals().update({
    name: test
    for name, test in vars(suite).items()
    if name.startswith("test_model_") and not any(part in name for part in ("pretrained", "inference", "with_features"))
})


@pytest.fixture(params=["plain", "stepped"], autouse=True)
def kind(request: pytest.FixtureRequest) -> None:
    suite.stepped = request.param == "stepped"
