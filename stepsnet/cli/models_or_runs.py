"""What a command that looks into models takes: a registered name, a run's folder, a saved file, timm:NAME or hf:FOLDER_OR_TYPE.

Runs come with their own validation data and loss; everything else with random inputs, and the words that say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepsnet.integrations.foreign import Loaded

SAMPLES = 8
"""Of a run's validation data, evenly spread."""


def load_any(name: str, seed: int = 0) -> Loaded:
    """The model that a word on the command line stands for, with inputs to run it on."""
    from stepsnet.errors import UsageError, nearest
    from stepsnet.integrations.foreign import is_foreign, load_foreign
    from stepsnet.models import list_models
    from stepsnet.runs.folder import is_run

    if is_foreign(name):
        return load_foreign(name, seed)
    path = Path(name).expanduser()
    if is_run(path):
        return load_run(path)
    if not path.exists() and name not in list_models():
        elsewhere = "`stepsnet models` lists ours, and models of timm and transformers are written timm:NAME and hf:TYPE"
        raise UsageError(f"there is no model, run or file '{name}'{nearest(name, list_models())}; {elsewhere}")
    return _load_own(name, seed)


def load_run(folder: Path, *, ema: bool = False) -> Loaded:
    """The model of a run as it is now, its validation samples and its loss on them; of dense tasks the backbone, on their pictures."""
    import dataclasses

    from stepsnet.integrations.foreign import Loaded
    from stepsnet.models import FeatureBackbone
    from stepsnet.runs import folder as rundir
    from stepsnet.tasks.base import DenseTask
    from stepsnet.train.checkpoint import latest
    from stepsnet.train.config import read_config
    from stepsnet.train.evaluate import trained_model

    config = dataclasses.replace(read_config(folder), parallel="none")
    task, model = trained_model(folder, config, ema=ema)
    count = min(SAMPLES, len(task.valid))
    stride = max(1, len(task.valid) // SAMPLES)
    batch = task.collate([task.valid[0, index] for index in range(0, stride * count, stride)])
    checkpoint = None if rundir.is_finished(folder) else latest(folder / rundir.CHECKPOINTS)
    step = rundir.last_line(folder / rundir.METRICS).get("step", 0) if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    weights = f"trained {step:,} steps" + (", averaged" if ema else "")
    data = f"{count} validation samples of the run"
    if isinstance(task, DenseTask):
        inside = next(module for module in model.modules() if isinstance(module, FeatureBackbone))
        return Loaded(str(folder), inside, (batch["image"],), f"backbone of a run of {task.name}, {weights}", data, step > 0)
    x = batch["image"] if "image" in batch else batch["tokens"]
    return Loaded(str(folder), model, (x,), weights, data, step > 0, loss=lambda: task.loss(model, batch), family=model.family)


def _load_own(name: str, seed: int) -> Loaded:
    """A registered model, newly made, or one from a file; on random inputs."""
    import torch

    from stepsnet.cli.subjects import weights_file
    from stepsnet.integrations.foreign import Loaded, random_pictures, random_tokens
    from stepsnet.models import VisionModel, create_model, load_model

    file = weights_file(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create_model(name) if file is None else load_model(file)
        vision = isinstance(model, VisionModel)
        x, data = random_pictures(*model.input_size) if vision else random_tokens(model.default_cfg["vocab_size"], *model.input_size)
    weights = f"as initialised (seed {seed})" if file is None else "weights from the file"
    return Loaded(name, model, (x,), weights, data, trained=False if file is None else None, family=model.family)
