"""Models of timm and transformers: built offline, reduced if too large, and clear errors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from stepsnet.analysis.find import find_blocks
from stepsnet.errors import UsageError
from stepsnet.integrations import foreign
from stepsnet.integrations.foreign import is_foreign, load_foreign

pytestmark = pytest.mark.skipif(
    find_spec("timm") is None or find_spec("transformers") is None, reason="needs timm and transformers"
)

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}


def test_a_model_of_timm_runs_on_its_random_images() -> None:
    found = load_foreign("timm:test_vit", seed=3)
    with torch.no_grad():
        assert found.model.eval()(*found.inputs).shape[0] == foreign.N_IMAGES
    assert found.trained is False
    assert found.description == "timm:test_vit: timm's, as initialised (seed 3); 4 random images of 3×160×160"


def test_a_seed_gives_the_same_model_and_does_not_change_the_generator() -> None:
    before = torch.get_rng_state()
    one, two = load_foreign("timm:test_vit"), load_foreign("timm:test_vit")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    assert torch.equal(one.inputs[0], two.inputs[0])


def test_a_model_that_is_too_large_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LIMITS", TINY)
    found = load_foreign("hf:llama")
    assert sum(parameter.numel() for parameter in found.model.parameters()) < 1e6
    assert (
        "hf:llama (reduced from 6.61 G to 0.00 G parameters: hidden_size=64, num_hidden_layers=2, vocab_size=100"
        in found.name
    )
    assert [len(stack.blocks) for stack in find_blocks(found.model, *found.inputs)] == [2]


def test_a_saved_folder_of_transformers_keeps_its_weights(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    saved = transformers.BertModel(config)
    saved.save_pretrained(tmp_path / "bert")
    found = load_foreign(f"hf:{tmp_path / 'bert'}")
    name = "encoder.layer.0.output.dense.weight"
    assert torch.equal(found.model.get_parameter(name), saved.get_parameter(name))
    assert found.trained is None
    assert found.inputs[0].shape == (foreign.N_TEXTS, foreign.N_TOKENS)


def test_missing_weights_of_a_folder_are_counted_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=32,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    kept = {
        key: weight for key, weight in load_file(tmp_path / "model.safetensors").items() if "layers.1.mlp" not in key
    }
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    capfd.readouterr()
    assert load_foreign(f"hf:{tmp_path}").weights == "weights from its folder, except 3 of 20, newly initialised"
    assert capfd.readouterr() == ("", "")


def test_a_vision_model_of_transformers_gets_images(tmp_path: Path) -> None:
    import transformers

    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    assert load_foreign(f"hf:{tmp_path}").inputs[0].shape == (foreign.N_IMAGES, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("timm:vit_tiny_patch16_225", "timm has no model 'vit_tiny_patch16_225'; nearest: vit_tiny"),
        ("timm:test_vit.nothing", "timm cannot make 'test_vit.nothing': Invalid pretrained tag"),
        ("hf:lama", "transformers has no model type 'lama'; nearest: llama"),
        ("hf:some/where", "some/where has no config.json"),
        ("hf:t5", "t5 has an encoder and a decoder"),
        ("hf:", "is not timm:NAME, hf:FOLDER or hf:TYPE"),
        ("steps_deit_tiny", "is not timm:NAME, hf:FOLDER or hf:TYPE"),
    ],
)
def test_invalid_names_raise_one_clear_error(name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load_foreign(name)


def test_a_pickled_file_is_not_read(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    config.save_pretrained(tmp_path)
    torch.save(transformers.BertModel(config).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match="transformers cannot read a model"):
        load_foreign(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "expected"), [("timm:a", True), ("hf:b", True), ("deit_tiny", False), ("C:/runs", False)]
)
def test_names_of_other_libraries_have_a_prefix(name: str, expected: bool) -> None:
    assert is_foreign(name) is expected
