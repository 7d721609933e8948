from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from stepsnet.data.text.prepare import train_bpe
from stepsnet.data.text.vocabulary import BpeVocabulary, ByteVocabulary
from stepsnet.errors import UsageError
from stepsnet.models import create_model
from stepsnet.models.language import Transformer
from stepsnet.tasks.generation import Emission, Sampling, generate, generate_tokens

GREEDY = Sampling(temperature=0)
BYTES = ByteVocabulary()


@pytest.fixture
def model() -> Transformer:
    model = create_model("test_steps_transformer").eval()
    assert isinstance(model, Transformer)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


class Script:
    """A model that returns given tokens for any input."""

    input_size: tuple[int, ...] = (8,)

    def __init__(self, *texts: bytes, vocab_size: int = 256) -> None:
        self.texts, self.vocab_size, self.steps = texts, vocab_size, 0

    def new_cache(self) -> Any:
        return self

    def keep(self, tokens: int) -> None:
        """There is no cache."""

    def forward_features(self, x: Tensor, cache: Any, mask: Tensor | None, positions: Tensor | None, /) -> Tensor:
        chosen = torch.tensor([text[min(self.steps, len(text) - 1)] for text in self.texts])
        self.steps += 1
        return torch.nn.functional.one_hot(chosen, self.vocab_size).float()[:, None] * 100

    def forward_head(self, x: Tensor, /) -> Tensor:
        return x

    def parameters(self) -> Iterator[Tensor]:
        return iter([torch.zeros(1)])


def written(*texts: bytes, **options: Any) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = [("", None)] * len(texts)
    for number, text, finished in generate(Script(*texts), BYTES, ["p"] * len(texts), **{"tokens": 20, **options}):
        found[number] = (found[number][0] + text, finished)
    return found


def without_cache(model: Transformer, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def test_generation_with_cache_equals_the_full_pass(model: Transformer) -> None:
    prompt = list(b"some prompt")
    stream = generate_tokens(model, [prompt], GREEDY)
    assert [tokens[0] for tokens in islice(stream, 30)] == without_cache(model, prompt, 30)


def test_a_batch_of_unequal_prompts_equals_single_prompts(model: Transformer) -> None:
    prompts = [list(b"a"), list(b"a much longer prompt"), list(b"middling")]
    together = list(islice(generate_tokens(model, prompts, GREEDY), 25))
    for number, prompt in enumerate(prompts):
        assert [tokens[number] for tokens in together] == without_cache(model, prompt, 25)


def test_the_text_depends_on_the_seed(model: Transformer) -> None:
    def text(seed: int) -> list[Emission]:
        return list(generate(model, BYTES, ["x"], tokens=40, seed=seed))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_text_can_grow_beyond_the_context(model: Transformer) -> None:
    stream = generate_tokens(model, [list(b"0123456789"), list(b"ab")], GREEDY, context=8)
    assert len(list(islice(stream, 50))) == 50


def test_a_context_longer_than_the_text_changes_nothing(model: Transformer) -> None:
    prompts = [list(b"0123456789"), list(b"ab")]
    limited, unlimited = (
        list(islice(generate_tokens(model, prompts, GREEDY, context=context), 20)) for context in (64, None)
    )
    assert limited == unlimited


def test_only_the_end_of_a_prompt_longer_than_the_context_counts(model: Transformer) -> None:
    long, short = (
        next(iter(generate_tokens(model, [list(prompt)], GREEDY, context=8)))
        for prompt in (b"XXXX12345678", b"12345678")
    )
    assert long == short


def test_an_empty_prompt_starts_a_document(model: Transformer) -> None:
    stream = generate_tokens(model, [[BYTES.start]], GREEDY)
    expected = BYTES.decode(tokens[0] for tokens in islice(stream, 8)).decode(errors="replace")
    assert "".join(piece.text for piece in generate(model, BYTES, [""], tokens=8, sampling=GREEDY)) == expected


def test_it_ends_after_the_given_number_of_tokens() -> None:
    assert written(b"abcdefgh", tokens=3) == [("abc", "length")]


def test_a_stop_string_ends_the_text_and_is_not_printed() -> None:
    assert written(b"one two three", stops=["tw", "three"]) == [("one ", "stop")]


def test_a_possible_beginning_of_a_stop_string_is_held_back() -> None:
    pieces = [piece.text for piece in generate(Script(b"ab<e<endx"), BYTES, ["p"], tokens=9, stops=["<end>"])]
    assert pieces == ["a", "b", "<e", "<endx"]


def test_held_back_text_is_printed_at_the_end() -> None:
    assert written(b"ab<en", tokens=5, stops=["<end>"]) == [("ab<en", "length")]


def test_only_whole_characters_are_printed() -> None:
    pieces = [piece.text for piece in generate(Script("a€b".encode()), BYTES, ["p"], tokens=5)]
    assert pieces == ["a", "€", "b"]


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    assert written("a€".encode(), tokens=3) == [("a�", "length")]


def test_each_text_of_a_batch_ends_for_its_own_reason() -> None:
    assert written(b"aaaa.", b"b.bbb", stops=["."], tokens=4) == [("aaaa", "length"), ("b", "stop")]


def test_the_separator_ends_a_text() -> None:
    vocabulary = BpeVocabulary(train_bpe(["ab " * 50], 260), "test")
    assert vocabulary.separator == 0
    a = vocabulary.pieces.index(b"a")
    script = Script(bytes([a, a, 0, a]), vocab_size=len(vocabulary.pieces))
    pieces = list(generate(script, vocabulary, ["ab"], tokens=9))
    assert ("".join(piece.text for piece in pieces), pieces[-1].finished) == ("aa", "end")


@pytest.mark.parametrize(
    ("prompts", "options", "sentence"),
    [
        ([], {}, "there is no prompt"),
        (["x"], {"tokens": 0}, "tokens is 0, but must be at least 1"),
        (["x"], {"stops": [""]}, "a stop string must not be empty"),
        (["x"], {"context": 0}, "the context is 0"),
    ],
)
def test_invalid_arguments_are_refused(prompts: list[str], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        list(generate(Script(b"a"), BYTES, prompts, **{"tokens": 5, **options}))


def test_a_vocabulary_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="has 300 tokens, but the tokenizer 256"):
        list(generate(Script(b"a", vocab_size=300), BYTES, ["x"], tokens=5))


@pytest.mark.parametrize("prompt", [[256], [-1], []])
def test_tokens_outside_the_vocabulary_are_refused(model: Transformer, prompt: list[int]) -> None:
    with pytest.raises(UsageError, match="prompt 0"):
        next(iter(generate_tokens(model, [prompt], GREEDY)))
