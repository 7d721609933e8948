"""The figures of studies: loss over depth, differences from a reference, γ over depth. Errors are standard errors over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from stepsnet.report.chart import BarChart, Chart, Line, LineChart
from stepsnet.research.studies.results import Results, mean_and_error
from stepsnet.research.studies.study import Arm, Setting
from stepsnet.runs.folder import GAMMA, read_lines

Charts = Iterator[tuple[str, Chart]]
"""Each with the name of its file."""

INITS = {False: "linear layers start trunc-normal 0.02", True: "linear layers start as Xavier's"}


def loss_over_blocks(results: Results, setting: Setting, *, training: bool = False, one_line: str = "") -> Charts:
    """One line for the arms of equal label, or all in `one_line`; nothing if no arm is finished."""
    families: dict[str, list[Arm]] = {}
    for arm in results.size.of(setting):
        if results.finished(arm):
            families.setdefault(one_line or arm.label, []).append(arm)
    what = "training" if training else "validation"
    lines = []
    for label, unsorted in families.items():
        members = sorted(unsorted, key=lambda arm: arm.blocks)
        found = [mean_and_error([cell.train_loss if training else cell.loss for cell in results.finished(arm)]) for arm in members]
        lines.append(Line(label, [arm.blocks for arm in members], [centre for centre, _ in found], members[-1].color, errors_of(found)))
    if lines:
        shown = [len(results.finished(arm)) for members in families.values() for arm in members]
        title = f"{what.capitalize()} loss over depth: {setting.key}"
        yield f"{setting.key}-{what}", LineChart(
            lines=lines, title=title, x_label="blocks", y_label=f"{what} loss (nats)",
            note=f"{setting.about}; mean ± standard error over {seeds_in_words(shown)}",
        )


def differences(results: Results, setting: Setting, reference: str, arms: Sequence[Arm], name: str = "differences") -> Charts:
    """How much lower than the reference's the validation loss of each arm is."""
    base = results.values(reference)
    shown = [(arm, found) for arm in arms if arm.key != reference and (found := results.values(arm.key))]
    if not base or not shown:
        return
    centre, error = mean_and_error(base)
    gains = [(centre - middle, (error**2 + other**2) ** 0.5) for middle, other in (mean_and_error(found) for _, found in shown)]
    known = results.arm(reference)
    assert known is not None
    told_apart = any(arm.blocks != known.blocks for arm, _ in shown)  # else the title says it
    labels = [f"{arm.label}, {arm.blocks} blocks" if told_apart else arm.label for arm, _ in shown]
    yield f"{setting.key}-{name}", BarChart(
        labels=labels, values=[gain for gain, _ in gains], spans=spans_of(gains),
        colors=[arm.color for arm, _ in shown], title=f"Gain over {known.label}, {known.blocks} blocks: {setting.key}",
        x_label="validation loss, lower by (nats)", note=f"{setting.about}; standard errors over {seeds_in_words([len(base)])}",
    )


def gains_over_the_first(results: Results) -> Charts:
    """On every data set, how much lower than its first arm's the losses of the others are."""
    for setting in results.size.settings():
        first, *others = results.size.of(setting)
        yield from differences(results, setting, first.key, others)


def gamma_over_depth(results: Results, setting: Setting, arms: Sequence[Arm], step: int, *, xavier: bool = False) -> Charts:
    """γ after every block at one training step, the mean over seeds."""
    lines: list[Line] = []
    seeds: list[int] = []
    for arm in arms:
        looks = [
            line["gamma"] for cell in results.finished(arm) for line in read_lines(results.pool / cell.cell / GAMMA)
            if line["step"] == step
        ]
        if looks:
            curve = [mean(found) if None not in found else None for found in zip(*looks, strict=True)]
            lines.append(Line(arm.label, range(1, len(curve) + 1), curve, arm.color))
            seeds.append(len(looks))
    if lines:
        yield f"{setting.key}-gamma-{arms[0].blocks}-step{step}" + ("-xavier" if xavier else ""), LineChart(
            lines=lines, title=f"Shortcut ratio over depth at step {step}: {setting.key}, {arms[0].blocks} blocks", x_label="block",
            y_label="γ = σ(z_0)/σ(z_l)",
            note=f"{setting.about}; {INITS[xavier]}; full-width state, waiting slices included; mean over {seeds_in_words(seeds)}",
        )


def gammas(results: Results, setting: Setting, arms: Sequence[Arm], *, xavier: bool = False) -> Charts:
    """Before training, early and at the end."""
    for step in dict.fromkeys((0, *setting.looks[1:2], *setting.looks[-1:])):
        yield from gamma_over_depth(results, setting, arms, step, xavier=xavier)


def errors_of(found: Sequence[tuple[float, float]]) -> list[float]:
    """The errors of means to draw."""
    return [0.0 if error != error else error for _, error in found]  # a single seed has none


def spans_of(found: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ends of mean ± error to draw."""
    return [(centre - error, centre + error) for (centre, _), error in zip(found, errors_of(found), strict=True)]


def seeds_in_words(finished: Sequence[int]) -> str:
    """Over how many seeds what is shown was averaged: those that finished, which may be fewer than registered, and not equally many."""
    fewest, most = min(finished), max(finished)
    return "one seed" if most == 1 else f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"
