"""transformers' own model tests of Llama, GPT-2, BERT and ViT, each with the plain classes and with stepified ones.

    git clone --depth 1 https://github.com/huggingface/transformers && cd transformers
    pip install parameterized
    cp STEPSNET/tests/checks/transformers_stepped.py tests/test_stepped.py
    PYTHONPATH=.:STEPSNET HF_HUB_OFFLINE=1 python -m pytest -c /dev/null --rootdir . tests/test_stepped.py -v -W ignore

`-k "BertModelTest and not Stepped"` runs the plain classes of BERT, `-k SteppedBert` the stepified ones: 5 to 10
minutes of one core. The tests are in the library's source tree and not in its package. Stepified models keep the number
of blocks and of heads (`STEPSNET_HEADS=keep_dim`: the dimension of heads), because the tests compare both with the
configuration of the plain model. docs/results/surgery.md has the counts.
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

    @functools.wraps(plain.__init__)
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(config, "stepsnet"):
            loaded.__init__(self, config, *args, **kwargs)
            return
        plain.__init__(self, copy.deepcopy(config), *args, **kwargs)
        width, depth = config.hidden_size, config.num_hidden_layers
        stepify(self, f"{width // 2}x1, {width}x{depth - 1}", heads=HEADS)

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

            def _prepare_for_class(self, inputs: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
                """Labels are chosen by the plain class."""
                return super()._prepare_for_class(inputs, getattr(kind, "stepsnet_plain", kind), *args, **kwargs)

            def _check_past_key_values_for_generate(
                self, batch_size: int, past_key_values: Any, seq_length: int | None, config: Any
            ) -> None:
                """Each block by itself: the library asks models with other caches than usual to overwrite this."""
                check = super()._check_past_key_values_for_generate
                if hasattr(past_key_values, "self_attention_cache"):  # two caches: this method is called for each
                    check(batch_size, past_key_values, seq_length, config)
                    return
                assert config.num_hidden_layers == len(past_key_values)
                for index, layer in enumerate(past_key_values.layers):
                    block, described = copy.copy(past_key_values), copy.deepcopy(config)
                    block.layers, described.num_hidden_layers = [layer], 1
                    described.hidden_size //= 2 if index == 0 else 1
                    check(batch_size, block, seq_length, described)

        globals()[name] = plain
        globals()[f"Stepped{name}"] = type(f"Stepped{name}", (Stepped,), {"__module__": __name__})


add_tests()
