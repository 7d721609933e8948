"""The doctor's page, from what `Diagnosis.to_json` gives: findings first, then the curves they come from, then every number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from stepsnet.report.html import figures, page, paragraph, section, table, write
from stepsnet.report.palette import MATCHED, OTHER, RESIDUAL, STEPS, TRAINING, VALIDATION
from stepsnet.report.svg import Line, binned, line_chart, number

COLORS = {"severe": "#b42318", "warning": "#b25e09", "note": "#475467"}

GAMMA_EXPLAINED = (
    "γ = σ(z_0)/σ(z_l) after every block: how much of the input is left in the full-width state. It depends on initialisation and training "
    "step. Vision models start near 1 at any depth, language models with small embeddings lower; the first steps of training decide where "
    "it goes."
)
GRADIENTS_EXPLAINED = (
    "Norms of the loss' gradient for each block's output and for its weights, on a logarithmic scale. A shortcut that carries keeps the "
    "first line level."
)
USE_EXPLAINED = (
    "How much each block changes what it is given, on a logarithmic scale: below the dashed line, next to nothing. The effective rank "
    "counts the directions in which positions differ."
)


def doctor_page(diagnosis: Mapping[str, Any], curves: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> str:
    """The whole document. `curves` are the lines of a run's files: "metrics" and "gamma"."""
    lead = f"{diagnosis['weights']}; looked at with {diagnosis['data']}. {len(diagnosis['blocks'])} blocks."
    blocks, joins, limits, lines = diagnosis["blocks"], diagnosis["joins"], diagnosis["limits"], curves or {}
    rows = [[join["name"], join["kind"], str(join["width"]), str(join["fresh"]), _shown(join["ratio"])] for join in joins]
    drawn = ", ".join(f"{name} {value:g}" for name, value in limits.items())
    sections = [
        section("Findings", paragraph(diagnosis["verdict"]), *map(_finding, diagnosis["findings"])),
        section("Where the shortcut goes", figures(*_shortcut(blocks, limits, diagnosis["weights"], lines)), paragraph(GAMMA_EXPLAINED)),
        section("Gradients", figures(*_gradients(blocks)), paragraph(GRADIENTS_EXPLAINED)),
        section("Is depth used? Is width?", figures(*_use(blocks, limits)), paragraph(USE_EXPLAINED)),
        section("Joins", table(("join", "kind", "channels before", "fresh channels", "RMS(x)/RMS(y)"), rows, left=(0, 1))),
        section("The run", figures(*_run(lines))),
        section("Every block", _block_table(blocks)),
        section("Where the lines are drawn", paragraph(f"{drawn}. Reasons: stepsnet/analysis/doctor_limits.py.")),
    ]
    return page(f"Doctor: {diagnosis['name']}", lead, sections)


def write_doctor_page(path: Path, diagnosis: Mapping[str, Any], curves: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> Path:
    return write(path, doctor_page(diagnosis, curves))


def _finding(finding: Mapping[str, Any]) -> str:
    color = COLORS[finding["severity"]]
    head = f'<strong style="color:{color}">{escape(finding["severity"])}</strong> · <code>{escape(finding["name"])}</code>'
    parts = [f"<p>{head}<br>{escape(finding['what'])}</p>", f"<p>{escape(finding['advice'])}</p>"]
    if finding["command"]:
        parts.append(f"<pre>{escape(finding['command'])}</pre>")
    parts.append(f'<p class="lead">Rule: {escape(finding["rule"])}. Found: {_shown(finding["value"])}.</p>')
    inside = "\n".join(parts)
    return f'<div style="border-left:4px solid {color};padding:2px 0 2px 16px;margin:16px 0">\n{inside}\n</div>'


def _shortcut(
    blocks: Sequence[Mapping[str, Any]], limits: Mapping[str, float], weights: str, curves: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[tuple[str, str]]:
    depth = range(1, len(blocks) + 1)
    lines = [Line(f"γ, {weights}", depth, _column(blocks, "gamma"), STEPS)]
    recorded = [line for line in curves.get("gamma", ()) if len(line["gamma"]) == len(blocks)]
    if recorded:
        worst = min(recorded, key=lambda line: sum(value or 0.0 for value in line["gamma"]))
        lines.append(Line(f"at its lowest, step {worst['step']:,}", depth, worst["gamma"], RESIDUAL))
    rule = f"line of the rule: a median of {limits['gamma']:g}"
    lines.append(Line(rule, (1, len(blocks)), (limits["gamma"],) * 2, TRAINING, dashed=True))
    sigma = [Line("", depth, _logs(_column(blocks, "sigma")), STEPS)]
    return [
        ("γ over depth", line_chart(lines, title="γ over depth", x_label="block", y_label="γ", height=360, y_range=(0.0, 1.0))),
        ("Size of the state", line_chart(sigma, title="σ over depth", x_label="block", y_label="log₁₀ σ(z_l)", height=306)),
    ]


def _gradients(blocks: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    depth = range(1, len(blocks) + 1)
    lines = [
        Line("‖∂L/∂z‖, output of the block", depth, _logs(_column(blocks, "state_gradient")), STEPS),
        Line("‖∂L/∂w‖, weights of the block", depth, _logs(_column(blocks, "weight_gradient")), OTHER),
    ]
    return [("Gradient norms over depth", line_chart(lines, title="gradient norms", x_label="block", y_label="log₁₀ norm", height=340))]


def _use(blocks: Sequence[Mapping[str, Any]], limits: Mapping[str, float]) -> list[tuple[str, str]]:
    depth = range(1, len(blocks) + 1)
    update = [
        Line("‖z_l − z_(l−1)‖ / ‖z_(l−1)‖", depth, _logs(_column(blocks, "update")), MATCHED),
        Line(f"{100 * limits['idle']:g} %", (1, len(blocks)), (math.log10(limits["idle"]),) * 2, TRAINING, dashed=True),
    ]
    cosine = [Line("", depth, _column(blocks, "cosine"), VALIDATION)]
    rank = [Line("", depth, _column(blocks, "rank"), OTHER)]
    label = "log₁₀ relative change"
    return [
        ("What each block changes", line_chart(update, title="update", x_label="block", y_label=label, width=370, height=340)),
        ("Cosine with the state before", line_chart(cosine, title="cosine", x_label="block", y_label="cosine", width=370, height=300)),
        ("Effective rank of the state", line_chart(rank, title="rank", x_label="block", y_label="rank", width=370, height=300)),
    ]


def _run(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, str]]:
    steps = curves.get("metrics", ())
    drawn = []
    for key, caption, color in (("loss", "Training loss", TRAINING), ("grad_norm", "Gradient norm before clipping", OTHER)):
        known = [line for line in steps if key in line]
        line = Line("", *binned([line["step"] for line in known], [line[key] for line in known]), color)
        drawn.append((caption, line_chart([line], title=caption, x_label="step", y_label=key, height=280)))
    return drawn


def _block_table(blocks: Sequence[Mapping[str, Any]]) -> str:
    keys = ("width", "gamma", "sigma", "update", "cosine", "rank", "largest", "state_gradient", "weight_gradient")
    heads = ("block", "name", "width", "γ", "σ", "update", "cosine", "rank", "max |z|", "‖∂L/∂z‖", "‖∂L/∂w‖")
    rows = [[str(index), block["name"], *(_shown(block[key]) for key in keys)] for index, block in enumerate(blocks, 1)]
    return table(heads, rows, left=(1,))


def _column(blocks: Sequence[Mapping[str, Any]], key: str) -> list[float | None]:
    return [block[key] for block in blocks]


def _logs(values: Sequence[float | None]) -> list[float | None]:
    """Logarithms; what has none leaves a gap."""
    return [math.log10(value) if value is not None and value > 0 else None for value in values]


def _shown(value: float | None) -> str:
    return "not finite" if value is None else number(float(f"{value:.4g}"))
