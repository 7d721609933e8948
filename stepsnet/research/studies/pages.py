"""A study's figures and its report. Errors are standard errors over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from stepsnet.report.chart import BarChart, Chart, Line, LineChart
from stepsnet.report.html import collapsed, command, figures, page, paragraph, section, write
from stepsnet.report.table import Column, Table
from stepsnet.research.studies.prediction import prediction_table
from stepsnet.research.studies.results import HOLDS, REFUTED, Outcome, Results, mean_and_error, number, with_error
from stepsnet.research.studies.study import Arm, Setting
from stepsnet.runs.folder import GAMMA, read_lines

if TYPE_CHECKING:
    from stepsnet.research.studies.runner import StudyFiles

Charts = Iterator[tuple[str, Chart]]
"""Each with the name of its file."""

LOOKS = 3  # records of γ in a table: before training, early, at the end
GPU_RATE = 50e12
"""Operations per second assumed for one GPU in the estimate of hours."""


def loss_over_blocks(results: Results, setting: Setting, *, training: bool = False, one_line: str = "") -> Charts:
    """One line per label, or one line `one_line` for all arms; nothing if no arm has finished.

    Losses after different numbers of steps are not joined.
    """
    families: dict[str, list[Arm]] = {}
    for arm in results.size.of(setting):
        if results.finished(arm):
            families.setdefault(one_line or arm.label, []).append(arm)
    kind = "training" if training else "validation"
    lines = []
    for label, unsorted in families.items():
        arms = sorted(unsorted, key=lambda arm: arm.blocks)
        losses = ([cell.train_loss if training else cell.loss for cell in results.finished(arm)] for arm in arms)
        found = [mean_and_error(values) for values in losses]
        points: list[tuple[float, float | None, float]] = []
        for index, (arm, (centre, _), error) in enumerate(zip(arms, found, errors_of(found), strict=True)):
            if index and arm.steps() != arms[index - 1].steps():
                points.append((arm.blocks, None, 0.0))
            points.append((arm.blocks, centre, error))
        blocks, means, errors = zip(*points, strict=True)
        lines.append(Line(label, blocks, means, arms[-1].color, errors))
    if lines:
        shown = [len(results.finished(arm)) for arms in families.values() for arm in arms]
        yield f"{setting.key}-{kind}", LineChart(
            lines=lines, title=f"{kind.capitalize()} loss over depth: {setting.key}", x_label="blocks",
            y_label=f"{kind} loss (nats)", log_x=True, x_ticks=sorted({block for line in lines for block in line.x}),
            note=f"{setting.about}; mean ± standard error over {seeds_in_words(shown)}",
        )  # fmt: skip


def differences(
    results: Results, setting: Setting, reference: str, arms: Sequence[Arm], name: str = "differences"
) -> Charts:
    """How much lower than the reference's the validation loss of each arm is."""
    base = results.values(reference)
    shown = [(arm, found) for arm in arms if arm.key != reference and (found := results.values(arm.key))]
    if not base or not shown:
        return
    centre, error = mean_and_error(base)
    others = (mean_and_error(found) for _, found in shown)
    gains = [(centre - middle, (error**2 + other**2) ** 0.5) for middle, other in others]
    known = results.arm(reference)
    assert known is not None
    with_blocks = any(arm.blocks != known.blocks for arm, _ in shown)  # else the title has them
    labels = [f"{arm.label}, {arm.blocks} blocks" if with_blocks else arm.label for arm, _ in shown]
    yield f"{setting.key}-{name}", BarChart(
        labels=labels, values=[gain for gain, _ in gains], spans=spans_of(gains),
        colors=[arm.color for arm, _ in shown], title=f"Gain over {known.label}, {known.blocks} blocks: {setting.key}",
        x_label="validation loss, lower by (nats)",
        note=f"{setting.about}; standard errors over {seeds_in_words([len(base)])}",
    )  # fmt: skip


def gains_over_the_first(results: Results) -> Charts:
    """On every data set, how much lower than its first arm's the losses of the others are."""
    for setting in results.size.settings():
        first, *others = results.size.of(setting)
        yield from differences(results, setting, first.key, others)


def losses_over_training(results: Results) -> Charts:
    """Training loss over tokens or images, the mean over seeds of each bin."""
    for setting in results.size.settings():
        lines, seeds = [], []
        for arm in results.size.of(setting):
            if cells := results.finished(arm):
                steps, losses = cells[0].curve[0], zip(*(cell.curve[1] for cell in cells), strict=True)
                lines.append(_over_data(arm, steps, [mean(map(number, each)) for each in losses]))
                seeds.append(len(cells))
        if lines:
            yield f"{setting.key}-training-curves", LineChart(
                lines=lines, title=f"Training loss: {setting.key}", x_label=_unit(setting),
                y_label="training loss (nats)", log_x=True, note=f"{setting.about}; mean over {seeds_in_words(seeds)}",
            )  # fmt: skip
    yield from gaps_over_training(results)


def gaps_over_training(results: Results) -> Charts:
    """Training loss of each arm less that of the first on the same seeds, after the warm-up: where do lines cross?"""
    for setting in results.size.settings():
        first, *others = results.size.of(setting)
        warmup = first.config(0).schedule.warmup_iters
        base = {cell.seed: cell.curve for cell in results.finished(first)}
        lines, seeds = [], []
        for arm in others:
            pairs = [(cell.curve, base[cell.seed]) for cell in results.finished(arm) if cell.seed in base]
            if pairs:
                gaps = ([number(a) - number(b) for a, b in zip(one[1], two[1], strict=True)] for one, two in pairs)
                points = [(step, mean(gap)) for step, *gap in zip(pairs[0][0][0], *gaps, strict=True) if step > warmup]
                lines.append(_over_data(arm, *zip(*points, strict=True)))
                seeds.append(len(pairs))
        if lines:
            yield f"{setting.key}-training-gaps", LineChart(
                lines=lines, title=f"Training loss less that of {first.label}: {setting.key}", x_label=_unit(setting),
                y_label="nats; above 0 it is worse", reference=0.0,
                note=f"{setting.about}, after the warm-up; mean over {seeds_in_words(seeds)}",
            )  # fmt: skip


def _unit(setting: Setting) -> str:
    return "tokens" if "seq_len" in setting.shape else "images"


def _over_data(arm: Arm, steps: Sequence[float], losses: Sequence[float]) -> Line:
    per_step = arm.config(0).batch_size * arm.setting.shape.get("seq_len", 1)
    return Line(f"{arm.label}, {arm.blocks} blocks", [step * per_step for step in steps], losses, arm.color)


def gamma_over_depth(results: Results, setting: Setting, arms: Sequence[Arm], step: int) -> Charts:
    """γ after every block at one training step, the mean over seeds."""
    lines: list[Line] = []
    seeds: list[int] = []
    for arm in arms:
        records = (read_lines(results.pool / cell.cell / GAMMA) for cell in results.finished(arm))
        looks = [line["gamma"] for record in records for line in record if line["step"] == step]
        if looks:
            curve = [mean(found) if None not in found else None for found in zip(*looks, strict=True)]
            lines.append(Line(arm.label, range(1, len(curve) + 1), curve, arm.color))
            seeds.append(len(looks))
    if lines:
        blocks = arms[0].blocks
        yield f"{setting.key}-gamma-{blocks}-step{step}", LineChart(
            lines=lines, x_label="block", y_label="γ = σ(z_0)/σ(z_l)",
            title=f"Shortcut ratio over depth at step {step}: {setting.key}, {blocks} blocks",
            note=f"{setting.about}; full-width state, waiting slices included; mean over {seeds_in_words(seeds)}",
        )  # fmt: skip


def gammas(results: Results, setting: Setting, arms: Sequence[Arm]) -> Charts:
    """Before training, early and at the end."""
    for step in dict.fromkeys((0, *setting.looks[1:2], *setting.looks[-1:])):
        yield from gamma_over_depth(results, setting, arms, step)


def errors_of(found: Sequence[tuple[float, float]]) -> list[float]:
    """The errors of means to draw; 0 for a single seed."""
    return [0.0 if error != error else error for _, error in found]


def spans_of(found: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ends of mean ± error to draw."""
    return [(centre - error, centre + error) for (centre, _), error in zip(found, errors_of(found), strict=True)]


def seeds_in_words(finished: Sequence[int]) -> str:
    """The number of seeds that finished, or its range over arms."""
    fewest, most = min(finished), max(finished)
    return "one seed" if most == 1 else f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


@dataclass(frozen=True)
class StudyPage:
    """The content of a report, as a page and as Markdown. Tables have titles; charts have the names of their files."""

    title: str
    lead: str
    verdict: str
    color: str
    facts: Sequence[tuple[str, str]]
    registered: Sequence[tuple[str, str]]
    outcomes: Sequence[str]
    remarks: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[tuple[str, Chart]]
    commands: Sequence[str]
    settings: str
    """The words that configure each arm."""

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write report.html, which is complete in itself, and report.md with its charts as files beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in self.figures:
            chart.save(folder / f"{name}.svg")
        return write(folder / "report.html", self.html()), write(folder / "report.md", self.markdown())

    def html(self) -> str:
        sections = [
            section("Outcome by the rule", *map(paragraph, self.outcomes), *map(paragraph, self.remarks)),
            section("Registered before it ran", *(paragraph(f"{term}: {words}") for term, words in self.registered)),
            section("Results", *(table.html() for table in self.tables)),
            section("Charts", figures(*(chart for _, chart in self.figures))),
            section("Commands", *map(command, self.commands)),
            section("Details", collapsed("Configuration of the arms", self.settings)),
        ]
        return page(self.title, self.lead, sections, verdict=self.verdict, color=self.color, facts=self.facts)

    def markdown(self) -> str:
        parts = [f"# {self.title}", self.lead, _list(f"**{term}.** {words}" for term, words in self.registered)]
        parts += ["## Outcome by the rule", _list(self.outcomes), *self.remarks]
        for table in self.tables:
            parts += [f"## {table.title}", table.markdown()]
        parts += [f"![{name}]({name}.svg)" for name, _ in self.figures]
        return "\n\n".join(filter(None, parts)) + "\n"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def study_page(place: StudyFiles, results: Results) -> StudyPage:
    study, size = place.study, place.chosen()
    total, failed, missing = size.count(), len(results.failed()), len(results.missing())
    done = total - failed - missing
    registered = [
        ("Question", study.question),
        ("Data and training", "; ".join(setting.about for setting in size.settings())),
        ("Seeds", ", ".join(map(str, size.seeds))),
        ("Rule", study.rule),
    ]
    if size.search:
        rates, words = ", ".join(f"{rate:g}" for rate in size.search.rates), " ".join(size.search.words)
        registered.insert(2, ("Learning rates", f"{rates} on seed {size.search.seed} with {words}; the best is used"))
    outcomes = study.decide(results)
    arms = [f"{arm.key}: {arm.setting.recipe} {' '.join((*arm.setting.words, *arm.words))}" for arm in size.arms]
    return StudyPage(
        title=f"Study {study.name}, {place.size}: {study.title}",
        lead=f"{done} of {total} cells finished, {failed} failed, {missing} unfinished",
        verdict=verdict_of(outcomes),
        color="warning" if failed or missing else "ink",
        facts=[("arms", f"{len(size.arms)}"), ("seeds", f"{len(size.seeds)}"), ("finished cells", f"{done}/{total}")],
        registered=registered,
        outcomes=[str(outcome) for outcome in outcomes],
        remarks=[f"Failed: {cell.cell}: {cell.error}" for cell in results.failed()],
        tables=[
            *(arm_table(results, setting) for setting in size.settings()), *study.tables(results),
            *prediction_table((results, study.equal_cost)),
        ],
        figures=list(study.draw(results)),
        commands=[f"stepsnet study {study.name} --size {place.size}"],
        settings="\n".join(arms),
    )


def verdict_of(outcomes: Sequence[Outcome]) -> str:
    """How many hypotheses hold, are refuted or stay open; of a single one, its outcome."""
    if len(outcomes) == 1:
        return str(outcomes[0])
    verdicts = [outcome.verdict for outcome in outcomes]
    counts = {"hold": verdicts.count(HOLDS), "refuted": verdicts.count(REFUTED)}
    counts["open"] = len(outcomes) - sum(counts.values())
    words = [f"{count} {word}" for word, count in counts.items() if count]
    return f"Of {len(outcomes)} hypotheses: {', '.join(words)}" if outcomes else ""


def arm_table(results: Results, setting: Setting) -> Table:
    """One row per arm: cost, losses, γ; mean ± standard error over the seeds that finished."""
    arms, search = results.size.of(setting), results.size.search
    columns: list[Column | str] = [
        "network", Column("blocks", priority=3), Column("params", priority=3), Column("MACs", priority=4),
        *([Column("learning rate", priority=3)] if search else []), Column("seeds", priority=4),
        Column("training loss", priority=2), "validation loss", setting.metric.replace("_", " "),
        Column("γ start", priority=4), Column("γ early", priority=4), Column("γ late", priority=2),
    ]  # fmt: skip
    return Table(columns, [_row(results, arm) for arm in arms], setting.about, [arm.color for arm in arms])


def _row(results: Results, arm: Arm) -> list[str]:
    cells, cost, metric = results.finished(arm), arm.cost(), arm.setting.metric
    looks = [list(cell.gamma.values()) for cell in cells if len(cell.gamma) == LOOKS]
    tuned = results.size.tuned(arm, results.found)
    rate = [f"{tuned.config(0).lr:g}" if tuned else "open"] if results.size.search else []
    return [
        arm.label, str(arm.blocks), f"{cost.params / 1e6:.3f} M", f"{cost.macs / 1e6:.1f} M", *rate, str(len(cells)),
        with_error([cell.train_loss for cell in cells]), with_error([cell.loss for cell in cells]),
        with_error([cell.valid[metric] for cell in cells if metric in cell.valid]),
        *(with_error([look[at] for look in looks], digits=2) for at in range(LOOKS)),
    ]  # fmt: skip


def summary(place: StudyFiles, results: Results) -> dict[str, Any]:
    """For `--json`."""
    outcomes = [
        {"hypothesis": each.hypothesis, "verdict": each.verdict, "difference": each.difference, "error": each.error}
        for each in place.study.decide(results)
    ]
    arms = [
        {"arm": arm.key, "label": arm.label, "blocks": arm.blocks, "params": arm.cost().params, "macs": arm.cost().macs,
         "train_loss": [cell.train_loss for cell in results.finished(arm)],
         "valid": [cell.valid for cell in results.finished(arm)]}
        for arm in place.chosen().arms
    ]  # fmt: skip
    return {
        "study": place.study.name, "size": place.size, "cells": place.chosen().count(),
        "finished": len(results.found) - len(results.failed()), "missing": results.missing(),
        "failed": {cell.cell: cell.error for cell in results.failed()}, "outcomes": outcomes, "arms": arms,
    }  # fmt: skip


def gpu_hours(place: StudyFiles) -> float:
    """6 operations per MAC (forward and backward), for every sample of every cell, at `GPU_RATE`."""
    size = place.chosen()
    cells = [*(cell.arm for cell in size.searched()), *(arm for arm in size.arms for _ in size.seeds)]
    work = sum(6 * arm.cost().macs * arm.steps() * arm.config(0).batch_size for arm in cells)
    return work / GPU_RATE / 3600
