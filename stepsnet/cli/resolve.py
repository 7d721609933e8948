"""From an argument of the command line to a model or a run.

A model is a registered name, the folder of a run or of `stepsnet stepify`, a saved file, pretrained:NAME (trained
weights that come with the package), timm:NAME or hf:FOLDER_OR_TYPE. A run is measured on its own validation data with
its own loss, everything else on random inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepsnet.errors import UsageError, nearest
from stepsnet.runs.folder import SHIPPED, pretrained_folder

if TYPE_CHECKING:
    from stepsnet.integrations.foreign import Loaded
    from stepsnet.models import Model

SAMPLES = 8
"""How many validation samples of a run are used, evenly spread."""


@dataclass(frozen=True)
class Named:
    """What an argument names. `path` is the folder of a run, or a file of weights."""

    word: str
    kind: Literal["registered", "run", "file", "foreign", "stepped"]
    path: Path = Path()


def resolve(word: str) -> Named:
    """What `word` names. A run or a file comes before a registered name that is written the same."""
    from stepsnet.integrations.foreign import is_foreign
    from stepsnet.models import list_models
    from stepsnet.runs.folder import WEIGHTS, is_run, is_stepped, transformers_config

    path = Path(word).expanduser()
    if is_foreign(word):
        return Named(word, "foreign")
    if word.startswith(SHIPPED):  # without the data of its run, hence a file
        return Named(word, "file", find_run(word) / WEIGHTS)
    if is_stepped(path):
        return Named(word, "stepped", path)
    if is_run(path):
        return Named(word, "run", path)
    if word in list_models():
        return Named(word, "registered")
    if transformers_config(path):
        raise UsageError(f"{path} is a model of transformers; write hf:{path}.")
    file = path / WEIGHTS if path.is_dir() else path
    if file.is_file():
        return Named(word, "file", file)
    if path.is_dir():
        raise UsageError(f"The folder {path} holds neither a run nor {WEIGHTS}.")
    if path.suffix or path.parent != Path():
        raise UsageError(f"There is no file {path}, and no model or run of that name.")
    known = "`stepsnet models` lists the names"
    raise UsageError(f"There is no model, run or file '{word}'{nearest(word, list_models())}; {known}.")


def find_run(word: str) -> Path:
    """The folder of a run, or a `UsageError` with the nearest runs beside it."""
    from stepsnet.runs.folder import is_run

    if word.startswith(SHIPPED):
        return pretrained_folder(word.removeprefix(SHIPPED))
    path = Path(word).expanduser()
    if not is_run(path):
        beside = [str(entry) for entry in path.parent.iterdir() if is_run(entry)] if path.parent.is_dir() else []
        raise UsageError(f"There is no run in {path}{nearest(str(path), beside)} (`stepsnet runs` lists them).")
    return path


def named_weights(word: str) -> Path | None:
    """The file of weights that `word` names: a file itself, that of a finished run, or the folder of a stepified model.

    None for a registered name.
    """
    from stepsnet.runs.folder import WEIGHTS

    named = resolve(word)
    if named.kind == "foreign":
        takes = "a registered name, a run, a saved file or a folder of `stepsnet stepify`"
        raise UsageError(f"{word} is a model of another library; this command takes {takes}.")
    if named.kind == "run" and not (named.path / WEIGHTS).is_file():
        raise UsageError(f"The run {named.path} has no {WEIGHTS}: it is not finished.")
    return {"registered": None, "run": named.path / WEIGHTS, "file": named.path, "stepped": named.path}[named.kind]


def find_model(word: str) -> Model:
    """The model of a registered name, newly initialised, or of a finished run, a file or a folder, with its weights."""
    from stepsnet.research.bench.memory import MemorySubject

    return MemorySubject(word, named_weights(word)).make()


def load_with_inputs(word: str, seed: int = 0) -> Loaded:
    """Any model that can be named, with inputs to run it on."""
    from stepsnet.integrations.foreign import load_foreign

    named = resolve(word)
    if named.kind == "foreign":
        return load_foreign(word, seed)
    if named.kind == "stepped":
        return _load_stepped(named.path, seed)
    return load_run(named.path) if named.kind == "run" else _load_own(named, seed)


def _load_stepped(folder: Path, seed: int) -> Loaded:
    import torch

    from stepsnet.integrations.foreign import Loaded, inputs_for, random_images
    from stepsnet.surgery import load, surgery_report

    model = load(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if hasattr(model, "config"):
            inputs, data = inputs_for(model, str(folder))
        else:
            x, data = random_images(*surgery_report(model).input[1:])
            inputs = (x,)
    return Loaded(str(folder), model, inputs, "weights from its folder", data, trained=None)


def load_run(folder: Path) -> Loaded:
    """The model of a run as it is now, validation samples, and its loss on them. Of a dense task, the backbone only."""
    import dataclasses

    from stepsnet.integrations.foreign import Loaded
    from stepsnet.models import FeatureBackbone
    from stepsnet.runs import folder as rundir
    from stepsnet.tasks.base import DenseTask, spread_samples
    from stepsnet.train.checkpoint import latest
    from stepsnet.train.config import read_config
    from stepsnet.train.evaluate import trained_model

    config = dataclasses.replace(read_config(folder), parallel="none")
    task, model = trained_model(folder, config)
    batch = spread_samples(task, SAMPLES)
    checkpoint = None if rundir.is_finished(folder) else latest(folder / rundir.CHECKPOINTS)
    last = rundir.last_line(folder / rundir.METRICS).get("step", 0)
    step = last if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    weights, data = f"trained {step:,} steps", f"{min(SAMPLES, len(task.valid))} validation samples of the run"
    if isinstance(task, DenseTask):
        inside = next(module for module in model.modules() if isinstance(module, FeatureBackbone))
        weights = f"backbone of a run of {task.name}, {weights}"
        return Loaded(str(folder), inside, (batch["image"],), weights, data, step > 0)
    inputs = (batch["image"] if "image" in batch else batch["tokens"],)
    loss = lambda: task.loss(model, batch)  # noqa: E731
    return Loaded(str(folder), model, inputs, weights, data, step > 0, loss=loss, family=model.family)


def _load_own(named: Named, seed: int) -> Loaded:
    import torch

    from stepsnet.integrations.foreign import Loaded, random_images, random_tokens
    from stepsnet.models import VisionModel, create_model, load_model

    new = named.kind == "registered"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create_model(named.word) if new else load_model(named.path)
        if isinstance(model, VisionModel):
            x, data = random_images(*model.input_size)
        else:
            x, data = random_tokens(model.default_cfg["vocab_size"], *model.input_size)
    weights = f"as initialised (seed {seed})" if new else "weights from the file"
    return Loaded(named.word, model, (x,), weights, data, trained=False if new else None, family=model.family)
