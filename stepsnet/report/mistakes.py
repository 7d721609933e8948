"""Which classes a classifier confuses, and the mistakes it is most sure of: mistakes.json and its part of the report.

Legend: B batch, K classes.
"""

from __future__ import annotations

import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.files import read_json, write_json
from stepsnet.report.html import paragraph, section
from stepsnet.report.table import Column, Table
from stepsnet.runs.folder import CLASSES

if TYPE_CHECKING:
    from stepsnet.train.trainer import Trainer

FILE = "mistakes.json"
WORST = 12
"""How many mistakes are shown with their images."""
LARGEST_MATRIX = 20
"""Classes up to which the whole matrix is shown; above, only the most frequent confusions."""
SHOWN_CONFUSIONS = 20


def record_mistakes(trainer: Trainer) -> None:
    """Write mistakes.json of a run of classification by one process: one more pass over its validation data."""
    import torch

    from stepsnet.tasks.classification import Classification

    task, processes = trainer.task, trainer.processes
    if not isinstance(task, Classification) or processes.world > 1:  # other processes do not come here
        return
    counts: Counter[tuple[int, int]] = Counter()
    wrong: list[tuple[float, int, int, int]] = []
    trainer.model.eval()
    with torch.no_grad():
        for batch, _ in trainer.through(trainer.validation):
            with trainer.autocast():
                logits = trainer.model(batch["image"].to(processes.device)) if len(batch["ids"]) else torch.empty(0, 1)
            best, predicted = logits.float().softmax(-1).max(-1)  # (B)
            rows = zip(best.tolist(), batch["ids"].tolist(), batch["target"].tolist(), predicted.tolist(), strict=True)
            for probability, sample, target, found in rows:
                counts[target, found] += 1
                if target != found:
                    wrong.append((probability, sample, target, found))
    wrong = sorted(wrong, reverse=True)[:WORST]
    worst = [
        {"probability": probability, "true": target, "predicted": found, **_image_of(task.valid, sample)}
        for probability, sample, target, found in wrong
    ]
    confused = [[target, found, count] for (target, found), count in sorted(counts.items())]
    write_json(trainer.out / FILE, {"confused": confused, "worst": worst})


def _image_of(dataset: Any, index: int) -> dict[str, str]:
    """The name of a validation image and, if Pillow is installed, a small copy of it."""
    names = getattr(dataset.source, "names", None)
    name = f"image {index}" if names is None else os.fsdecode(bytes(names[index]))
    if find_spec("PIL") is None:
        return {"name": name, "image": ""}
    from PIL import Image

    from stepsnet.report.annotate import thumbnail

    stored = dataset.source.read(index)  # an array (H, W, C) or a Pillow image
    image = stored if hasattr(stored, "convert") else Image.fromarray(stored.squeeze())
    return {"name": name, "image": thumbnail(image)}


def mistakes_section(folder: Path) -> str:
    """The part of the report about mistakes; "" if none were recorded."""
    from stepsnet.report.annotate import gallery

    found, classes = read_json(folder / FILE), read_json(folder / CLASSES).get("classes", [])
    if not found or not classes:
        return ""
    confused = {(target, predicted): count for target, predicted, count in found["confused"]}
    wrong = sum(count for (target, predicted), count in confused.items() if target != predicted)
    total = sum(confused.values())
    table = _matrix(confused, classes) if len(classes) <= LARGEST_MATRIX else _most_confused(confused, classes)
    cards = [
        (one["image"], one["name"], [f"true: {classes[one['true']]}",
                                     f"predicted: {classes[one['predicted']]} {one['probability']:.1%}"])
        for one in found["worst"]
    ]  # fmt: skip
    words = "The images whose wrong class has the highest probability."
    return section(
        "Mistakes", paragraph(f"{wrong:,} of {total:,} validation images are classified wrongly."), table.html(),
        *([paragraph(words), gallery(cards)] if cards else []),
    )  # fmt: skip


def _matrix(confused: dict[tuple[int, int], int], classes: list[str]) -> Table:
    numbers = range(len(classes))
    rows = []
    for target in numbers:
        counts = [confused.get((target, predicted), 0) for predicted in numbers]
        share = f"{counts[target] / sum(counts):.1%}" if sum(counts) else ""
        rows.append([classes[target], *(str(count) if count else "·" for count in counts), share])
    columns = [Column("true class, predicted:", "name"), *(Column(name) for name in classes), Column("correct")]
    return Table(columns, rows, title="Confusion matrix")


def _most_confused(confused: dict[tuple[int, int], int], classes: list[str]) -> Table:
    pairs = sorted(((count, pair) for pair, count in confused.items() if pair[0] != pair[1]), reverse=True)
    totals: Counter[int] = Counter()
    for (target, _), count in confused.items():
        totals[target] += count
    rows = [[classes[target], classes[predicted], str(count), f"{count / totals[target]:.1%}"]
            for count, (target, predicted) in pairs[:SHOWN_CONFUSIONS]]  # fmt: skip
    columns = (Column("true class", "name"), Column("predicted", "name"), "images", "share of the class")
    return Table(columns, rows, title=f"The {len(rows)} most frequent confusions")
