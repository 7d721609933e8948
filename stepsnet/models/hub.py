"""Native models as folders of the Hugging Face Hub: weights, and a model card made from the model and its run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.models.files import save_model
from stepsnet.models.model import Model
from stepsnet.models.registry import load_model
from stepsnet.optional import require
from stepsnet.runs.folder import read_result, read_settings, summarize

FILE, CARD = "model.safetensors", "README.md"
USE = """\
from stepsnet.models.hub import from_pretrained

model = from_pretrained("FOLDER_OR_REPOSITORY")"""


def save_pretrained(model: Model, folder: str | Path, *, run: str | Path | None = None) -> None:
    """Write weights and a model card to a folder. `run` is the run that trained the model; the card quotes it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, folder / FILE)
    replace_file(folder / CARD, model_card(model, run=run).encode())


def from_pretrained(source: str | Path, *, revision: str | None = None, **options: Any) -> Model:
    """The model of a folder that `save_pretrained` wrote, or of a repository of the Hub; options as in `load_model`."""
    path = Path(source) / FILE
    if not Path(source).is_dir():
        hub = require("huggingface_hub", extra="transformers")
        path = Path(hub.hf_hub_download(str(source), FILE, revision=revision))
    elif not path.is_file():
        raise UsageError(f"{source} has no {FILE}; save_pretrained writes such a folder.")
    return load_model(path, **options)


def push_to_hub(model: Model, repo_id: str, *, run: str | Path | None = None, private: bool = False) -> str:
    """Upload weights and card to a repository of the Hub, which is created if necessary. Returns its address."""
    api = require("huggingface_hub", extra="transformers").HfApi()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, run=run)
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder)
    return str(address)


def model_card(
    model: Model, *, run: str | Path | None = None, data: str = "", command: str = "", limits: str = "", use: str = USE
) -> str:
    """A model card in Markdown: architecture, plan, cost, training data, metrics, limits.

    `run` trained the model. `data`, `command` and `limits` say in words what a run does not record: where the data come
    from and their licence, the command line, and what the model cannot do. `use` is the code that loads it.
    """
    made = model.default_cfg
    if not made:
        raise UsageError("only a model made by create_model has a card; this one was built directly.")
    name, cost = made["architecture"], model.cost()
    trained, source, metrics = _training(Path(run)) if run is not None else ("not stated", "not stated", {})
    shape = "×".join(map(str, model.input_size))
    task = "image-classification" if len(model.input_size) == 3 else "text-generation"
    plans = "\n".join(
        f"| {stage} | {', '.join(map(str, plan.widths))} | {', '.join(map(str, plan.depths))} |"
        for stage, plan in enumerate(model.plans, start=1)
    )
    design = ", ".join(f"{key} {made['options'].get(key, 'plain')}" for key in ("join", "residual"))
    notes = "\n".join(f"- {note}" for note in (
        limits,
        "The weights are for research. They were not checked for bias or safety.",
        f"Cost and metrics are for inputs of {shape}; other sizes run, but were not measured.",
        "" if run is not None else "No training run is stated: the weights may be untrained.",
    ) if note)  # fmt: skip
    found = "\n".join(f"| {key} | {value:.4g} |" for key, value in metrics.items() if value is not None)
    return f"""---
library_name: stepsnet
pipeline_tag: {task}
tags:
- stepsnet
- {model.family}
---

# {name}

A Step by Step Network ([arXiv 2511.14329](https://arxiv.org/abs/2511.14329)) of the family {model.family}.

```python
{use}
```

## Architecture and plan

`plan="{model.plan}"`, {design}.

| stage | widths of the steps | blocks |
|---|---|---|
{plans}

## Cost

| blocks | layers | parameters | MACs of one input of {shape} |
|---|---|---|---|
| {cost.blocks} | {cost.layers} | {cost.params:,} | {cost.macs:,} |

## Training data

{data or source}

Trained by: {f"`{command}`, " if command else ""}{trained}.

## Metrics

{f'''| metric of the validation data | value |
|---|---|
{found}''' if found else "Not stated."}

## Limits

{notes}
"""


def _training(run: Path) -> tuple[str, str, dict[str, Any]]:
    """How a run trained, on which data, and its last validation metrics."""
    settings, facts = read_settings(run), summarize(run)
    data, metrics = settings["data"], {"step": facts["step"], **facts["metrics"]} | read_result(run)
    root = f", folder {Path(data['root']).name}" if data.get("root") else ""
    how = f"recipe {facts['recipe']}, {metrics.pop('step')} steps, seed {settings.get('seed', 'unknown')}"
    return how, f"{data['kind']}{root}", metrics
