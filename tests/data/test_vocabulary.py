from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsnet.data.text.prepare import train_bpe
from stepsnet.data.text.vocabulary import SEPARATOR, BpeVocabulary, ByteVocabulary, byte_characters
from stepsnet.errors import UsageError

TEXT = "the cat sat on the mat; the dog sat on the log. " * 40
BPE = BpeVocabulary(train_bpe([TEXT], 300), "test")


@pytest.mark.parametrize("vocabulary", [ByteVocabulary(), BPE], ids=["bytes", "bpe"])
@given(text=st.text())
def test_encoding_and_decoding_restore_any_text(vocabulary: ByteVocabulary | BpeVocabulary, text: str) -> None:
    tokens = vocabulary.encode(text)
    assert vocabulary.decode(tokens) == text.encode()
    assert all(0 <= token < len(vocabulary.pieces) for token in tokens)


def test_a_bpe_is_shorter_than_bytes() -> None:
    assert len(BPE.encode(TEXT)) < 0.5 * len(TEXT)


def test_training_twice_gives_the_same_tokenizer() -> None:
    assert BPE.content == train_bpe([TEXT], 300)


def test_the_separator_has_no_bytes_and_is_never_encoded_from_text() -> None:
    assert BPE.separator is not None
    assert BPE.pieces[BPE.separator] == b""
    assert BPE.separator not in BPE.encode(f"a{SEPARATOR}b")


def test_an_empty_prompt_starts_with_the_separator_or_a_newline() -> None:
    assert BPE.start == BPE.separator
    assert ByteVocabulary().start == ord("\n")


def test_the_byte_alphabet_equals_that_of_the_library() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(byte_characters()) == set(ByteLevel.alphabet())
    assert sorted(byte_characters().values()) == list(range(256))


def test_a_vocabulary_can_be_pickled() -> None:
    BPE.encode("makes the encoder")
    copy = pickle.loads(pickle.dumps(BPE))
    assert (copy.encode("the cat"), copy.identity) == (BPE.encode("the cat"), BPE.identity)


def test_a_model_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="has 256 tokens, but the tokenizer 274"):
        BPE.check_fits(256, "the model")


@pytest.mark.parametrize(
    "content", ["", "{}", '{"model": {"vocab": {"a": 0}}}', '{"model": {"vocab": {"word piece": 0}}}', "[1]"]
)
def test_other_tokenizers_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json is not a byte-level BPE, such as GPT-2's"):
        BpeVocabulary.load(tmp_path / "tokenizer.json")


def test_the_error_names_a_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no tokenizer .*tokenizer\.json"):
        BpeVocabulary.load(tmp_path / "tokenizer.json")


def test_a_vocabulary_smaller_than_257_is_refused() -> None:
    with pytest.raises(UsageError, match="vocabulary of 200 tokens is too small"):
        train_bpe([TEXT], 200)
