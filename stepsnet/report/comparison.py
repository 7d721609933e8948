"""Networks side by side, each from its run folder: one table, their losses in one frame, γ over depth early and late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepsnet.files import read_json
from stepsnet.report.html import figures, page, paragraph, section, table, write
from stepsnet.report.run import GAMMA_EXPLAINED, STACK_EXPLAINED, early_line, saved_plans
from stepsnet.report.stack import stack_svg
from stepsnet.report.svg import Line, binned, line_chart
from stepsnet.runs.folder import CONFIG, EVALUATIONS, GAMMA, METRICS, read_lines


@dataclass(frozen=True)
class Compared:
    """One network of a comparison: its name, its colour, the folder of its run, its row of the table."""

    label: str
    color: str
    run_dir: Path
    cells: Sequence[str]


def comparison_report(
    path: Path, title: str, lead: str, networks: Sequence[Compared], *, columns: Sequence[str], metric: str,
    findings: Sequence[str] = (), remarks: Sequence[str] = (),
) -> Path:
    """Write the page: `findings` stand before the table, `remarks` at the end. `metric` is the validation metric to draw."""
    rows = [[network.label, *network.cells] for network in networks]
    sections = [
        section("What came out", *map(paragraph, findings), table(columns, rows, colors=[network.color for network in networks])),
        section("Curves", figures(
            ("Training loss", _curves(networks, METRICS, "loss", "training loss")),
            (f"Validation: {metric}", _curves(networks, EVALUATIONS, metric, metric)),
        )),
        section("Shortcut ratio over depth", figures(
            ("Before training", _gammas(networks, 0)), ("Early", _gammas(networks, 1)), ("Late", _gammas(networks, -1)),
        ), paragraph(GAMMA_EXPLAINED)),
        section("The stacks", figures(*_stacks(networks)), paragraph(STACK_EXPLAINED)),
        section("What this shows and what it does not", *map(paragraph, remarks)),
    ]
    return write(path, page(title, lead, sections))


def _curves(networks: Sequence[Compared], file: str, key: str, label: str) -> str:
    lines = []
    for network in networks:
        found = [line for line in read_lines(network.run_dir / file) if key in line]
        x, y = binned([line["step"] for line in found], [line[key] for line in found], bins=60)
        lines.append(Line(network.label, x, y, network.color))
    return line_chart(lines, title=label, x_label="step", y_label=label, height=380)


def _gammas(networks: Sequence[Compared], when: int) -> str:
    """γ of every network at the first (0), the early (1) or the last (-1) look at it."""
    lines = []
    for network in networks:
        recorded = read_lines(network.run_dir / GAMMA)
        if recorded:
            look = early_line(recorded) if when == 1 else recorded[when]
            depth = range(1, len(look["gamma"]) + 1)
            lines.append(Line(f"{network.label}, step {look['step']:,}", depth, look["gamma"], network.color))
    return line_chart(lines, title="γ over depth", x_label="block", y_label="γ", width=370, height=360, y_range=(0.0, 1.0))


def _stacks(networks: Sequence[Compared]) -> list[tuple[str, str]]:
    """Each stack once, under the names of all networks that have it, all on one scale."""
    found = [(network.label, saved_plans(network.run_dir, read_json(network.run_dir / CONFIG))) for network in networks]
    known = [(label, *plans) for label, plans in found if plans]
    widest = max((plan.width for _, plans, _ in known for plan in plans), default=1)
    labels: dict[str, list[str]] = {}
    for label, _, text in known:
        labels.setdefault(text, []).append(label)
    pictures = {text: stack_svg(plans, widest=widest) for _, plans, text in known}
    return [(f"{'; '.join(labels[text])}: {text}", picture) for text, picture in pictures.items()]
