"""A trained language model and its vocabulary, from the folder of its run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from stepsnet.data.text.tokens import TOKENIZER
from stepsnet.data.text.vocabulary import BpeVocabulary, ByteVocabulary, Vocabulary
from stepsnet.errors import UsageError
from stepsnet.models import load_model
from stepsnet.runs.folder import WEIGHTS, WEIGHTS_EMA, is_run
from stepsnet.tasks.generation import LanguageModel
from stepsnet.train.config import read_config


def load_language_run(place: Path, *, ema: bool = False, tokenizer: Path | None = None) -> tuple[LanguageModel, Vocabulary]:
    """The model in evaluation mode, and what its tokens stand for. `place` is a run's folder, or a file of weights alone."""
    if place.is_dir():
        read_config(place)  # says so if this is no run at all
        file = place / (WEIGHTS_EMA if ema else WEIGHTS)
        if not file.is_file():
            raise UsageError(
                f"{place} has no {file.name}: its average was not kept (optim.ema)."
                if ema and (place / WEIGHTS).is_file()
                else f"{place} has no {file.name} yet: the run is not finished; go on with it by `stepsnet resume {place}`."
            )
    else:
        file = place
    loaded = load_model(file).eval()
    if not hasattr(loaded, "new_cache"):
        raise UsageError(f"{place} holds a {loaded.family}, which is not a language model.")
    model = cast(LanguageModel, loaded)
    vocabulary = _vocabulary(place, tokenizer)
    vocabulary.check_fits(model.vocab_size, str(place))
    return model, vocabulary


def _vocabulary(place: Path, tokenizer: Path | None) -> Vocabulary:
    beside = (place if place.is_dir() else place.parent) / TOKENIZER
    own = BpeVocabulary.load(beside) if beside.is_file() else None
    if tokenizer is not None:
        given = BpeVocabulary.load(tokenizer)
        if own is not None and own.identity != given.identity:
            raise UsageError(f"{tokenizer} is another tokenizer than the one beside the weights, {beside}.")
        return given
    if own is not None:
        return own
    if is_run(place) and (config := read_config(place)).data.kind == "tokens":
        return BpeVocabulary.load(Path(config.data.root).expanduser() / TOKENIZER)
    return ByteVocabulary()
