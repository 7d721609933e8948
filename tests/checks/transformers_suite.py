"""Our classes in transformers' own model tests, which are in its source tree and not in its package.

    git clone --depth 1 https://github.com/huggingface/transformers && cd transformers
    pip install parameterized
    cp STEPSNET/tests/checks/transformers_suite.py tests/test_steps.py
    PYTHONPATH=.:STEPSNET HF_HUB_OFFLINE=1 python -m pytest -c /dev/null --rootdir . tests/test_steps.py

`tests` is the library's package there. docs/how-to/transformers.md has the counts.
"""

from __future__ import annotations

import importlib
import unittest
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from stepsnet import transformers as steps
from stepsnet.integrations.transformers.auto import FAMILIES

# Tests of 5.16 know this function by its former name. Only tests of tensor parallelism, which we do not have, call it.
parallel: Any = importlib.import_module("transformers.distributed.tensor_parallel")
if hasattr(parallel, "_get_parameter_plan"):
    vars(parallel)["_get_parameter_tp_plan"] = parallel._get_parameter_plan

common: Any = importlib.import_module("tests.test_modeling_common")
backbones: Any = importlib.import_module("tests.test_backbone_common")

# The tests give labels to a class, or leave it out of training, by its name in these tables.
TABLES: dict[str, Any] = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    "AutoBackbone": modeling_auto.MODEL_FOR_BACKBONE_MAPPING_NAMES,
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForImageClassification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForTokenClassification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
}
for known in FAMILIES.values():
    for auto, model in known.models.items():
        TABLES[auto.__name__][known.config.model_type] = model.__name__


class LanguageTester:
    """What the library's tests read from a tester. `options` are those of `create_model`."""

    def __init__(self, parent: Any, options: dict[str, Any]) -> None:
        self.parent, self.batch_size, self.seq_length, self.is_training = parent, 5, 7, True
        self.config = steps.StepsTransformerConfig.from_name(
            "test_steps_transformer", vocab_size=99, seq_len=512, **options
        )
        self.vocab_size, self.hidden_size = 99, 32
        self.num_hidden_layers = self.config.num_hidden_layers
        self.num_attention_heads = self.config.num_attention_heads

    def get_config(self) -> Any:
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
        return steps.StepsTransformerConfig.from_dict({**self.config.to_dict(), **special})

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        ids = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids).tril()}


class LanguageTest(common.ModelTesterMixin, common.GenerationTesterMixin):  # type: ignore[misc]
    options: dict[str, Any]

    def setUp(self) -> None:
        self.model_tester = LanguageTester(self, self.options)
        self.all_model_classes = tuple(FAMILIES["transformer"].models.values())


class OneStepTest(LanguageTest, unittest.TestCase):
    options = {"plan": "32x2"}  # noqa: RUF012


class SteppedTest(LanguageTest, unittest.TestCase):
    options = {"plan": "16x1, 32x1"}  # noqa: RUF012


class UniformTest(LanguageTest, unittest.TestCase):
    options = {"plan": "16x1, 32x1", "heads": "uniform", "head_dim": 16}  # noqa: RUF012


class VisionTester:
    def __init__(self, parent: Any, family: str) -> None:
        self.parent, self.batch_size, self.is_training, self.image_size = parent, 3, True, 32
        self.config = FAMILIES[family].config.from_name(f"test_steps_{family}")

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        config = type(self.config).from_dict({**self.config.to_dict(), "out_indices": [1, 3, -1], "out_features": None})
        return config, {"pixel_values": torch.rand(self.batch_size, 3, self.image_size, self.image_size)}


class VisionTest(common.ModelTesterMixin):  # type: ignore[misc]
    """Hidden states are maps, as in the library's own ResNet; there are no embeddings and no attention weights."""

    family: str
    test_resize_embeddings = False
    has_attentions = False

    def setUp(self) -> None:
        self.model_tester = VisionTester(self, self.family)
        self.all_model_classes = tuple(FAMILIES[self.family].models.values())

    def test_inputs_embeds(self) -> None:
        self.skipTest("the model takes images")

    def test_model_get_set_embeddings(self) -> None:
        self.skipTest("the model takes images")

    def test_hidden_states_output(self) -> None:
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes:
            found = model_class(config).eval()(**inputs, output_hidden_states=True).hidden_states
            assert len(found) == len(config.stage_names)


class DeiTTest(VisionTest, unittest.TestCase):
    family = "deit"


class SwinTest(VisionTest, unittest.TestCase):
    family = "swin"


class SwinPlusTest(VisionTest, unittest.TestCase):
    family = "swinpp"


class ResNetTest(VisionTest, unittest.TestCase):
    family = "resnet"


class BackboneTest(backbones.BackboneTesterMixin):  # type: ignore[misc]
    family: str
    has_attentions = False

    def setUp(self) -> None:
        self.model_tester = VisionTester(self, self.family)
        self.config_class = FAMILIES[self.family].config
        self.all_model_classes = (list(FAMILIES[self.family].models.values())[-1],)


class DeiTBackboneTest(BackboneTest, unittest.TestCase):
    family = "deit"


class SwinBackboneTest(BackboneTest, unittest.TestCase):
    family = "swin"


class SwinPlusBackboneTest(BackboneTest, unittest.TestCase):
    family = "swinpp"


class ResNetBackboneTest(BackboneTest, unittest.TestCase):
    family = "resnet"
