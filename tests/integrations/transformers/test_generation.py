"""The tests of transformers' GenerationTesterMixin under their names; docs/how-to/language.md lists those that do not
apply."""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

import pytest
import torch
from transformers import DynamicCache, GenerationMixin, StaticCache

from stepsnet.integrations.transformers import StepsTransformerForCausalLM, to_stepsnet
from stepsnet.tasks.generation import Sampling, generate_tokens
from tests.integrations.transformers.common import NAMES, make_ids, make_model, write

both = pytest.mark.parametrize("name", NAMES)


def test_inherits_generation_mixin() -> None:
    assert issubclass(StepsTransformerForCausalLM, GenerationMixin)
    assert StepsTransformerForCausalLM.can_generate()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@both
def test_greedy_generate(name: str, attention: str) -> None:
    model, ids = make_model(name, attention=attention), make_ids()
    found = write(model, ids)
    assert found.shape == (2, 20)
    native = cast(Any, to_stepsnet(model))
    ours = torch.tensor(list(islice(generate_tokens(native, ids.tolist(), Sampling(temperature=0)), 8))).T
    assert torch.equal(found[:, 12:], ours)


@both
def test_greedy_generate_with_and_without_cache(name: str) -> None:
    model, ids = make_model(name), make_ids()
    assert torch.equal(write(model, ids, use_cache=True), write(model, ids, use_cache=False))


def test_greedy_generate_dict_outputs() -> None:
    model, ids = make_model(attention="eager"), make_ids()
    wanted = {"output_scores": True, "output_logits": True, "output_hidden_states": True, "output_attentions": True}
    output = write(model, ids, return_dict_in_generate=True, **wanted)
    assert len(output.scores) == len(output.logits) == len(output.hidden_states) == len(output.attentions) == 8
    assert isinstance(output.past_key_values, DynamicCache)
    assert torch.equal(output.sequences, write(model, ids))


@both
def test_sample_generate(name: str) -> None:
    model, ids = make_model(name), make_ids()
    settings: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "num_return_sequences": 2,
    }
    torch.manual_seed(3)
    first = write(model, ids, **settings)
    torch.manual_seed(3)
    assert torch.equal(first, write(model, ids, **settings))
    assert first.shape == (4, 20)


@pytest.mark.parametrize("use_cache", [True, False])
@both
def test_beam_search_generate(name: str, use_cache: bool) -> None:
    model, ids = make_model(name), make_ids()
    output = write(model, ids, num_beams=3, use_cache=use_cache, return_dict_in_generate=True, output_scores=True)
    greedy = write(model, ids)
    assert output.sequences.shape == (2, 20)
    # What the beams find is at least as probable as the greedy text.
    assert (log_probability(model, output.sequences) >= log_probability(model, greedy) - 1e-4).all()


def log_probability(model: StepsTransformerForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = cast(Any, model)(ids[:, :-1]).logits.log_softmax(-1)
    return logits.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, 11:].sum(-1)


def test_beam_search_with_and_without_cache_agree() -> None:
    model, ids = make_model(), make_ids()
    assert torch.equal(write(model, ids, num_beams=4), write(model, ids, num_beams=4, use_cache=False))


def test_beam_sample_generate() -> None:
    model, ids = make_model(), make_ids()
    assert write(model, ids, num_beams=2, do_sample=True).shape == (2, 20)


def test_prompt_lookup_decoding_matches_greedy_search() -> None:
    model, ids = make_model(), make_ids(1)
    assert torch.equal(write(model, ids, prompt_lookup_num_tokens=3), write(model, ids))


def test_assisted_decoding_matches_greedy_search() -> None:
    model, ids = make_model(), make_ids(1)
    assistant = make_model(plan="16x1, 32x1")
    assert torch.equal(write(model, ids, assistant_model=assistant), write(model, ids))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@both
def test_left_padding_compatibility(name: str, attention: str) -> None:
    model, ids = make_model(name, attention=attention), make_ids(1)
    padded = torch.cat((torch.zeros(1, 7, dtype=torch.long), ids), dim=1)
    mask = torch.cat((torch.zeros(1, 7, dtype=torch.long), torch.ones_like(ids)), dim=1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    found = cast(Any, model)(padded, attention_mask=mask, position_ids=positions).logits
    expected = cast(Any, model)(ids).logits
    assert (found[:, 7:] - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert torch.equal(write(model, padded, attention_mask=mask)[:, 19:], write(model, ids)[:, 12:])


def test_a_batch_of_unequal_prompts_equals_single_prompts() -> None:
    model, ids = make_model(), make_ids(3)
    mask = torch.ones_like(ids)
    for row, pad in enumerate((0, 5, 9)):
        ids[row, :pad] = 0
        mask[row, :pad] = 0
    together = write(model, ids, attention_mask=mask)
    for row, pad in enumerate((0, 5, 9)):
        assert torch.equal(together[row, 12:], write(model, ids[row : row + 1, pad:])[0, 12 - pad :])


@both
def test_past_key_values_format(name: str) -> None:
    model, ids = make_model(name), make_ids()
    cache = cast(Any, model)(ids, use_cache=True).past_key_values
    assert cache.get_seq_length() == 12
    widths = [layer.keys.shape[1] * layer.keys.shape[3] for layer in cache.layers]
    plan = model.model.network.plans[0]
    assert widths == [width for width, depth in zip(plan.widths, plan.depths, strict=True) for _ in range(depth)]
    assert {tuple(layer.keys.shape[::2]) for layer in cache.layers} == {(2, 12)}


@pytest.mark.parametrize("pieces", [[11, 1], [5, 7], [1] * 12], ids=str)
@both
def test_incremental_logits_equal_the_full_pass(name: str, pieces: list[int]) -> None:
    model, ids = cast(Any, make_model(name)), make_ids()
    cache = DynamicCache(config=model.config)
    logits = [model(piece, past_key_values=cache, use_cache=True).logits for piece in ids.split(pieces, dim=1)]
    expected = model(ids).logits
    assert (torch.cat(logits, dim=1) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_generate_from_inputs_embeds() -> None:
    model, ids = make_model(), make_ids()
    assert torch.equal(write(model, None, inputs_embeds=model.get_input_embeddings()(ids)), write(model, ids)[:, 12:])


def test_generate_continue_from_past_key_values() -> None:
    model, ids = make_model(), make_ids()
    first = write(model, ids, return_dict_in_generate=True)
    assert torch.equal(
        write(model, first.sequences, past_key_values=first.past_key_values), write(model, ids, max_new_tokens=16)
    )


@both
def test_generate_with_static_cache(name: str) -> None:
    model, ids = make_model(name), make_ids()
    output = write(model, ids, cache_implementation="static", return_dict_in_generate=True)
    assert isinstance(output.past_key_values, StaticCache)
    assert torch.equal(output.sequences, write(model, ids))


def test_generate_without_input_ids_starts_with_the_bos_token() -> None:
    model = make_model()
    found = write(model, None, bos_token_id=10)
    assert found[0, 0] == 10
    assert found.shape == (1, 9)


def test_generation_ends_at_the_eos_token() -> None:
    model, ids = make_model(), make_ids(1)
    third = int(write(model, ids)[0, 14])
    assert write(model, ids, eos_token_id=third)[0, -1] == third
    assert write(model, ids, eos_token_id=third).shape[1] <= 15


def test_generation_goes_beyond_the_training_length() -> None:
    model, ids = make_model(), make_ids(1, 30)
    assert model.config.max_position_embeddings == 32
    found = write(model, ids, max_new_tokens=40)
    assert torch.equal(found, write(model, ids, max_new_tokens=40, use_cache=False))


def test_generate_methods_with_logits_to_keep() -> None:
    model, ids = make_model(), make_ids()
    assert torch.equal(write(model, ids, logits_to_keep=0), write(model, ids, logits_to_keep=1))
