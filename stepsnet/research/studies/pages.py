"""From a study's results to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepsnet.report.study import StudyPage, write_study
from stepsnet.report.table import Column, Table
from stepsnet.research.studies.results import Results, spread
from stepsnet.research.studies.runner import Place
from stepsnet.research.studies.study import Arm, Setting

LOOKS = 3  # at γ: before training, early, at the end
GPU_RATE = 50e12
"""Operations a second that one GPU is assumed to sustain, for the estimate of hours; an assumption, not a measurement."""


def write_report(place: Place, results: Results) -> tuple[Path, Path]:
    """report.html and report.md in the study's folder."""
    return write_study(place.folder, study_page(place, results))


def study_page(place: Place, results: Results) -> StudyPage:
    study, size = place.study, place.chosen()
    total = len(size.cells())
    done = total - len(results.missing()) - len(results.failed())
    return StudyPage(
        title=f"Study {study.name}, {place.size}: {study.title}",
        lead=f"{done} of {total} cells finished, {len(results.failed())} failed, {len(results.missing())} not run yet",
        registered=[
            ("Question", study.question),
            ("Data and training", "; ".join(setting.about for setting in size.settings())),
            ("Seeds", ", ".join(map(str, size.seeds))),
            ("Rule", study.rule),
        ],
        outcomes=[outcome.in_words() for outcome in study.decide(results)],
        remarks=[f"Failed: {cell.cell}: {cell.error}" for cell in results.failed()],
        tables=[*(arm_table(results, setting) for setting in size.settings()), *study.tables(results)],
        figures=list(study.draw(results)),
    )


def arm_table(results: Results, setting: Setting) -> Table:
    """One row an arm: cost, losses, γ; means over the seeds that finished, ± standard error."""
    columns: list[Column | str] = [
        "network", Column("blocks", priority=3), Column("params", priority=3), Column("MACs", priority=4),
        Column("seeds", priority=4), Column("training loss", priority=2), "validation loss", setting.metric.replace("_", " "),
        Column("γ start", priority=4), Column("γ early", priority=4), Column("γ late", priority=2),
    ]  # fmt: skip
    arms = results.size.of(setting)
    return Table(columns, [_row(results, arm) for arm in arms], setting.about, [arm.color for arm in arms])


def _row(results: Results, arm: Arm) -> list[str]:
    cells, cost = results.finished(arm), arm.cost()
    looks = [list(cell.gamma.values()) for cell in cells if len(cell.gamma) == LOOKS]
    return [
        arm.label, str(arm.blocks), f"{cost.params / 1e6:.3f} M", f"{cost.macs / 1e6:.1f} M", str(len(cells)),
        spread([cell.train_loss for cell in cells]), spread([cell.loss for cell in cells]),
        spread([cell.valid[arm.setting.metric] for cell in cells if arm.setting.metric in cell.valid]),
        *(spread([look[at] for look in looks], digits=2) for at in range(LOOKS)),
    ]


def summary(place: Place, results: Results) -> dict[str, Any]:
    """For `--json`."""
    outcomes = [
        {"hypothesis": outcome.hypothesis, "verdict": outcome.verdict, "difference": outcome.difference, "error": outcome.error}
        for outcome in place.study.decide(results)
    ]
    return {
        "study": place.study.name, "size": place.size, "cells": len(place.chosen().cells()),
        "finished": len(results.found) - len(results.failed()), "missing": [cell.id for cell in results.missing()],
        "failed": {cell.cell: cell.error for cell in results.failed()}, "outcomes": outcomes,
        "arms": [
            {"arm": arm.key, "label": arm.label, "blocks": arm.blocks, "params": arm.cost().params, "macs": arm.cost().macs,
             "train_loss": [cell.train_loss for cell in results.finished(arm)], "valid": [cell.valid for cell in results.finished(arm)]}
            for arm in place.chosen().arms
        ],
    }  # fmt: skip


def gpu_hours(place: Place) -> float:
    """6 operations a MAC, forward and backward, for every sample of every cell, at the rate that is assumed."""
    size = place.chosen()
    work = sum(6 * arm.cost().macs * arm.steps() * arm.config(0).batch_size for arm in size.arms) * len(size.seeds)
    return work / GPU_RATE / 3600
