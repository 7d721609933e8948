"""The language model: causal, rotary, tied. (What it does with a cache is in test_language_cache.py.)"""

from __future__ import annotations

import pytest
import torch

from stepsnet.models.language import Transformer
from tests.models.tiny import VARIANTS, example, language, variant

every_model = pytest.mark.parametrize("key", [key for key in VARIANTS if "transformer" in key])


def sharp(key: str) -> Transformer:
    """A model whose logits depend on every token: at its own start, attention hardly tells tokens apart."""
    model = variant(key).eval()
    assert isinstance(model, Transformer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and name != "embed.weight":
                parameter.mul_(10)
    return model


@every_model
def test_no_token_depends_on_later_tokens(key: str) -> None:
    model = sharp(key)
    ids = example(model, 24)
    other = ids.clone()
    other[:, 12:] = (other[:, 12:] + 1) % model.vocab_size
    with torch.no_grad():
        before, after = model(ids), model(other)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12:], after[:, 12:])


@every_model
def test_every_token_depends_on_earlier_tokens(key: str) -> None:
    model = sharp(key)
    ids = example(model, 12)
    other = ids.clone()
    other[:, 0] = (other[:, 0] + 1) % model.vocab_size
    with torch.no_grad():
        changed = (model(ids) - model(other)).abs().amax(dim=(0, 2))
    assert (changed > 1e-4).all()


def test_the_order_of_tokens_matters() -> None:
    model = sharp("test_transformer")
    ids = torch.tensor([[3, 7, 9, 1]])
    with torch.no_grad():
        assert not torch.allclose(model(ids)[0, -1], model(ids[:, [1, 0, 2, 3]])[0, -1], atol=1e-4)


def test_rotary_attention_depends_on_distances_only() -> None:
    """Rotary positions: moved along a text, the same tokens attend in the same way."""
    from stepsnet.blocks.attention import rotary_table, rotate

    q, k = torch.randn(2, 8)
    scores = [
        float(rotate(q, rotary_table(torch.tensor(start + 5), 8)) @ rotate(k, rotary_table(torch.tensor(start), 8)))
        for start in (0, 1, 40)
    ]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-5)


def test_the_head_is_the_embedding() -> None:
    model = language("test_transformer")
    assert [name for name, _ in model.named_parameters() if "embed" in name or "head" in name] == ["embed.weight"]
    with torch.no_grad():
        torch.testing.assert_close(model(ids := example(model, 4)), model.forward_features(ids) @ model.embed.weight.T)


def test_embeddings_are_scaled_as_in_gemma() -> None:
    """The scale applies to what the blocks read, and not to the head, which has the same weight."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    model = language("test_transformer", embed_scale=50)
    gemma = Gemma3TextScaledWordEmbedding(model.vocab_size, 32, padding_idx=0, embed_scale=50)
    gemma.load_state_dict(model.embed.state_dict(), strict=False)
    ids = example(model, 4)
    assert torch.equal(model.embed(ids), gemma(ids))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), model.forward_features(ids) @ model.embed.weight.T)


def test_no_biases() -> None:
    assert [name for name, _ in language("test_steps_transformer").named_parameters() if "bias" in name] == []


def test_vocabulary_and_length_are_options() -> None:
    model = language("transformer_30m", vocab_size=100, seq_len=64, embed_dim=32, depth=2, plan="16x2, 32x1")
    assert model(example(model, 70)).shape == (
        2,
        70,
        100,
    )  # longer than seq_len, which is only what costs are counted at
    assert model.default_cfg["vocab_size"] == 100
    assert model.input_size == (64,)
