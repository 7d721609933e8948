"""What the figures of docs/performance.md were meant to reach, written down before they were measured, and whether they do."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepsnet.report.bench_tables import WordTable


@dataclass(frozen=True)
class Goal:
    """A speed ratio, its lower quartile in the worst of all cases of the commands named; `contender` is the label or its beginning."""

    what: str
    commands: str
    at_least: float
    mode: str = "*"
    model: str = "*"
    contender: str = "stepsnet*"
    per_mac: bool = False
    best: bool = False
    """The best contender counts, not the worst."""


GOALS = (
    Goal("DeiT against timm", "timm_deit_*", 0.97),
    Goal("ResNet against timm, inference", "timm_resnet18|timm_resnet50", 1.2, mode="inference"),
    Goal("ResNet against timm, inference, batch norms folded", "timm_resnet_folded", 1.2),
    Goal("ResNet against timm, training", "timm_resnet18|timm_resnet50_training*", 1.0, mode="training"),
    Goal("Swin against timm, inference", "timm_swin_*", 1.15, mode="inference"),
    Goal("Swin against timm, training", "timm_swin_*", 1.15, mode="training"),
    Goal("Swin-T compiled or exported, the best, against timm's eager", "compiled|exported", 1.4, "inference", "swin_tiny", "*", best=True),
    Goal("Steps-DeiT-T, -S against baseline, per MAC", "baseline_deit_*", 0.95, per_mac=True),
    Goal("Steps-Swin-T against baseline, per MAC", "baseline_swin_*", 0.95, per_mac=True),
    Goal("Steps-Swin of 96 blocks against residual Swin of 96, inference", "deep_swin", 1.15, mode="inference"),
    Goal("Steps-Swin of 96 blocks against residual Swin of 96, training", "deep_swin", 1.15, mode="training"),
    Goal("bf16 against fp32, DeiT-S and Swin-T, inference", "bf16", 1.4),
)
SAVED_RATIO = 1 / 1.3
MAKING_SECONDS = 1.5


def goals_table(documents: Mapping[str, Mapping[str, Any]]) -> WordTable:
    rows = [_row(goal, documents) for goal in GOALS]
    if "memory" in documents:
        saved = {row["model"]: row["saved_per_input"] for row in documents["memory"]["rows"]}
        ratio = saved["steps_swin_deep_d96"] / saved["swin_deep_d96"]
        what = "bytes saved for backward, Steps-Swin over residual Swin, 96 blocks"
        rows.append([what, f"≤ {SAVED_RATIO:.2f}", f"{ratio:.2f}", _mark(ratio <= SAVED_RATIO)])
    if "construction" in documents:
        slowest = max(row["make"]["median"] for row in documents["construction"]["rows"])
        rows.append(["making a 482-layer network, seconds", f"< {MAKING_SECONDS}", f"{slowest:.2f}", _mark(slowest < MAKING_SECONDS)])
    return WordTable("Goals", ("what", "wanted", "measured", "met"), rows)


def _row(goal: Goal, documents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = list(_lower_quartiles(goal, documents))
    if not found:
        return [goal.what, f"≥ {goal.at_least:.2f}", "not measured yet", ""]
    value = max(found) if goal.best else min(found)
    return [goal.what, f"≥ {goal.at_least:.2f}", f"{value:.2f}", _mark(value >= goal.at_least)]


def _lower_quartiles(goal: Goal, documents: Mapping[str, Mapping[str, Any]]) -> Iterator[float]:
    for name, document in documents.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in goal.commands.split("|")):
            continue
        for case in document["cases"]:
            if fnmatch.fnmatch(case["mode"], goal.mode) and fnmatch.fnmatch(case["model"] or "", goal.model):
                for one in case["contenders"][1:]:
                    if fnmatch.fnmatch(one["label"], goal.contender):
                        yield one["ratio_per_mac" if goal.per_mac else "ratio"]["lower"]


def _mark(met: bool) -> str:
    return "yes" if met else "no"
