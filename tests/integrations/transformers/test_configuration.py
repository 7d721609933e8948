"""The tests of transformers' ConfigTester under their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stepsnet.errors import UsageError
from stepsnet.integrations.transformers import StepsTransformerConfig
from stepsnet.models import create_model, list_models
from tests.integrations.transformers.common import make_config


@pytest.mark.parametrize("name", list_models("*transformer_*m"))
def test_from_name_describes_every_registered_model(name: str) -> None:
    config = StepsTransformerConfig.from_name(name)
    model = create_model(name, device="meta")
    with torch.device("meta"):
        built = config.build()
    assert (built.plan, built.vocab_size, built.input_size) == (model.plan, 50000, (128,))
    assert config.num_hidden_layers == len(model.blocks_in_order())
    assert {key: tensor.shape for key, tensor in built.state_dict().items()} == {
        key: t.shape for key, t in model.state_dict().items()
    }


def test_from_name_takes_the_options_of_create_model() -> None:
    options = {"plan": 2, "vocab_size": 300, "join": "matched_grad", "seq_len": 64}
    config = StepsTransformerConfig.from_name("transformer_30m", **options)
    assert (config.plan, config.vocab_size, config.join, config.max_position_embeddings) == (
        "272x6, 384x3",
        300,
        "matched_grad",
        64,
    )


def test_config_common_properties() -> None:
    config = make_config(vocab_size=99)
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
        assert getattr(config, name) > 0
    assert config.vocab_size == 99
    config.hidden_size = 77
    assert config.hidden_size == 77


def test_config_to_json_string_and_file(tmp_path: Path) -> None:
    config = make_config()
    config.to_json_file(tmp_path / "config.json")
    assert StepsTransformerConfig.from_json_file(tmp_path / "config.json").to_dict() == config.to_dict()
    assert '"plan": "16x4, 24x2, 32x2"' in config.to_json_string()


def test_config_from_and_save_pretrained(tmp_path: Path) -> None:
    config = make_config(join="matched_grad")
    config.save_pretrained(tmp_path)
    assert StepsTransformerConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert isinstance(transformers.AutoConfig.from_pretrained(tmp_path), StepsTransformerConfig)


def test_config_can_be_init_without_params() -> None:
    with torch.device("meta"):
        assert StepsTransformerConfig().build().plan == "192x6, 272x3, 384x3"


def test_config_arguments_init() -> None:
    given: dict[str, Any] = {
        "output_hidden_states": True,
        "return_dict": False,
        "num_labels": 3,
        "attn_implementation": "eager",
    }
    config = StepsTransformerConfig(**given)
    assert (config.output_hidden_states, config.return_dict, config.num_labels) == (True, False, 3)
    assert config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: StepsTransformerConfig.from_name("steps_transfomer_30m"), "nearest: steps_transformer_30m"),
        (lambda: StepsTransformerConfig.from_name("deit_tiny"), "deit_tiny is of the family deit; "),
        (lambda: StepsTransformerConfig(hidden_size=99), "ends at width 384, but hidden_size is 99"),
        (lambda: StepsTransformerConfig(plan="wide"), "is not WIDTHxBLOCKS"),
    ],
)
def test_invalid_configurations_raise_one_clear_error(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=sentence):
        make()
