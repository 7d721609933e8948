"""transformers' own model tests of Llama, GPT-2, BERT and ViT, each with the plain classes and with stepified ones.

    git clone --depth 1 https://github.com/huggingface/transformers && cd transformers
    pip install parameterized
    cp STEPSNET/tests/checks/transformers_stepped.py tests/test_stepped.py
    PYTHONPATH=.:STEPSNET HF_HUB_OFFLINE=1 python -m pytest -c /dev/null --rootdir . tests/test_stepped.py \
        -k "not compile" --timeout 60

The tests are in the library's source tree and not in its package. Stepified models keep the number of blocks, because
the tests compare it with the configuration of the plain model. docs/results/surgery.md has the counts.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from stepsnet.surgery import stepify
from stepsnet.surgery.saving import remade
from stepsnet.surgery.stepify import find_host
from stepsnet.surgery.support import narrow_width

LEFT_OUT = {
    "test_pipeline_mixin": "PipelineTesterMixin",
    "test_fsdp_mixin": "FSDPTesterMixin",
    "test_tensor_parallel_mixin": "TensorParallelTesterMixin",
}
"""Tests that need downloads or several devices."""
HEADS = os.environ.get("STEPSNET_HEADS", "keep_count")
TESTS = {"llama": "LlamaModelTest", "gpt2": "GPT2ModelTest", "bert": "BertModelTest", "vit": "ViTModelTest"}


@functools.cache
def stepped(plain: Any) -> Any:
    """The class with half the width in the first block, and loaded as any stepified model is."""
    loaded = remade(plain)

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(config, "stepsnet"):
            loaded.__init__(self, config, *args, **kwargs)
            return
        plain.__init__(self, copy.deepcopy(config), *args, **kwargs)
        host = find_host(self, heads=HEADS)
        (stage,) = host.stages
        stepify(self, f"{narrow_width(host, 0)}x1, {stage.width}x{stage.depth - 1}", heads=HEADS)

    return type(plain.__name__, (loaded,), {"__init__": init, "__module__": plain.__module__})


def add_tests() -> None:
    for module, mixin in LEFT_OUT.items():
        sys.modules[f"tests.{module}"] = ModuleType(module)
        setattr(sys.modules[f"tests.{module}"], mixin, type(mixin, (), {}))
    for library, name in TESTS.items():
        plain: Any = getattr(importlib.import_module(f"tests.models.{library}.test_modeling_{library}"), name)

        class Stepped(plain):  # type: ignore[misc]
            all_model_classes: Any

            def setUp(self) -> None:
                super().setUp()
                self.all_model_classes = tuple(map(stepped, self.all_model_classes))

        globals()[name] = plain
        globals()[f"Stepped{name}"] = type(f"Stepped{name}", (Stepped,), {"__module__": __name__})


add_tests()
