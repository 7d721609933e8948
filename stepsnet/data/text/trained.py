"""A trained language model and its vocabulary, from its run folder."""

from __future__ import annotations

from pathlib import Path

from stepsnet.data.text.tokens import TOKENIZER, is_prepared
from stepsnet.data.text.vocabulary import BpeVocabulary, ByteVocabulary, Vocabulary
from stepsnet.errors import UsageError
from stepsnet.models import load_model
from stepsnet.models.language import Transformer
from stepsnet.runs.folder import WEIGHTS, WEIGHTS_EMA, is_run, read_settings


def load_language_run(
    place: Path, *, ema: bool = False, tokenizer: Path | None = None
) -> tuple[Transformer, Vocabulary]:
    """The model in evaluation mode and its vocabulary. `place` is a run folder or a weights file."""
    if place.is_dir():
        read_settings(place)  # raises if this is not a run
        file = place / (WEIGHTS_EMA if ema else WEIGHTS)
        if not file.is_file():
            raise UsageError(
                f"{place} has no {file.name}: it was trained without averaging (optim.ema=0)."
                if ema and (place / WEIGHTS).is_file()
                else f"{place} has no {file.name} yet: the run is not finished. `stepsnet resume {place}` continues it."
            )
    else:
        file = place
    model = load_model(file).eval()
    if not isinstance(model, Transformer):
        raise UsageError(f"{place} holds a {model.family}; this command takes language models of this package only.")
    vocabulary = vocabulary_of(place, tokenizer)
    vocabulary.check_fits(model.vocab_size, str(place))
    return model, vocabulary


def vocabulary_of(place: Path, tokenizer: Path | None = None) -> Vocabulary:
    """The vocabulary of a run or a weights file: `tokenizer`, the one beside the weights, that of its data; or bytes.
    """
    beside = (place if place.is_dir() else place.parent) / TOKENIZER
    own = BpeVocabulary.load(beside) if beside.is_file() else None
    if tokenizer is not None:
        given = BpeVocabulary.load(tokenizer)
        if own is not None and own.identity != given.identity:
            raise UsageError(f"{tokenizer} is a different tokenizer from the one next to the weights, {beside}.")
        return given
    if own is not None:
        return own
    if is_run(place) and (data := read_settings(place).get("data", {})).get("kind") in ("text", "tokens"):
        root = Path(data["root"]).expanduser()
        if data["kind"] == "tokens" or is_prepared(root):
            return BpeVocabulary.load(root / TOKENIZER)
    return ByteVocabulary()
