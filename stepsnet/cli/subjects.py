"""Models as the command line takes them: a registered name, the folder of a finished run, or a saved file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepsnet.models import Model


def weights_file(word: str) -> Path | None:
    """The file a word stands for; None for a registered name, unless a run is called so. What is neither is answered in a sentence."""
    from stepsnet.errors import UsageError
    from stepsnet.models import get_variant, list_models
    from stepsnet.runs.folder import WEIGHTS, is_run

    path = Path(word).expanduser()
    if word in list_models() and not is_run(path):
        return None
    if not path.exists():
        if path.suffix or path.parent != Path():
            raise UsageError(f"there is no file {path}, and no model or run of that name")
        get_variant(word)  # says so, with the nearest names
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{path} has no {WEIGHTS}: it is no run, or one that is not finished yet.")
    return file


def find_model(word: str) -> Model:
    """The model of a name, newly made, or of a folder or file, with its weights."""
    from stepsnet.models import create_model, load_model

    file = weights_file(word)
    return create_model(word) if file is None else load_model(file)
