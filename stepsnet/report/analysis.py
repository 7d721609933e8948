"""Charts of analysis results, and the page of `stepsnet doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.report.chart import BarChart, Chart, Line, LineChart
from stepsnet.report.html import command, figures, page, paragraph, section, write
from stepsnet.report.run import gamma_words
from stepsnet.report.svg import MATCHED, OTHER, RESIDUAL, STEPS, TRAINING, VALIDATION, binned, short
from stepsnet.report.table import Column, Table

if TYPE_CHECKING:  # analysis imports torch, which a page does not need
    from stepsnet.analysis import DroppedBlocks, GradientFlow, MaskedPaths, ShortcutRatio, StepContribution, WidthUse

Curves = Mapping[str, Sequence[Mapping[str, Any]]]
"""The lines of a run's files: "metrics" and "gamma"."""
Blocks = Sequence[Mapping[str, Any]]
"""The fields of `doctor.measure.BlockMeasurement`."""


def shortcut_chart(found: ShortcutRatio, note: str = "") -> Chart:
    """The weights of Eq. 2, what each block adds, and the cosine. `note` should state initialisation and step."""
    curves = [
        ("γ = σ₀/σ_l (shortcut)", found.gamma, False), ("σ_r/σ_l (all branches)", found.residual_weight, False),
        ("own branch: σ(z_l - z_(l-1))/σ_l", found.branch_weight, True), ("cosine with z₀", found.cosine, True),
    ]  # fmt: skip
    return _over_depth("Shortcut ratio over depth", "share of σ_l", found.block, found.stage, curves, note)


def gradient_chart(found: GradientFlow, note: str = "") -> Chart:
    """∂ẑ_l/∂ẑ_0 beside γ, and the norms relative to their largest."""
    curves = [
        ("∂ẑ_l/∂ẑ₀", found.dz, False), ("γ = σ₀/σ_l (Eq. 2)", found.gamma, True),
        ("‖∂L/∂z_l‖, largest = 1", _relative(found.activation_norms), False),
        ("‖∂L/∂weights of the block‖, largest = 1", _relative(found.block_norms), False),
    ]  # fmt: skip
    return _over_depth("Gradient over depth", "", found.block, found.stage, curves, note)


def width_chart(found: WidthUse, note: str = "") -> Chart:
    curves: list[tuple[str, Sequence[float], bool]] = [
        ("behind the block", found.rank, False), ("of z₀", found.rank_0, True), ("at most", found.limit, True),
    ]
    return _over_depth("Effective rank of the state", "effective rank", found.block, found.stage, curves, note)


def contribution_chart(found: StepContribution, note: str = "") -> Chart:
    title = "What each step adds to the final state"
    return BarChart(title=title, note=note, labels=found.steps, values=found.norm, x_label="‖update‖ / ‖final state‖")


def paths_chart(found: MaskedPaths, metric: str = "metric", note: str = "") -> Chart:
    slow = Line("slow path: the first n", found.sizes, found.slow)
    lines = [slow, Line("fast path: the last n", found.sizes, found.fast)]
    title = "Slow and fast path masked"
    return LineChart(title=title, note=note, lines=lines, x_label="channels of x set to zero", y_label=metric)


def drops_chart(found: DroppedBlocks, metric: str = "metric", note: str = "") -> Chart:
    words = [f"{step}, last {count}" if count else step for step, count in zip(found.steps, found.dropped, strict=True)]
    title = "Equal computation dropped in each step"
    return BarChart(title=title, note=note, labels=words, values=found.metric, x_label=metric)


def _over_depth(
    title: str, y_label: str, blocks: Sequence[int], stages: Sequence[int],
    curves: Sequence[tuple[str, Sequence[float], bool]], note: str,
) -> Chart:
    """Curves (label, values, dashed) over the numbers of the blocks, with a gap where a stage ends."""
    ends = [index for index in range(1, len(blocks)) if stages[index] != stages[index - 1]]
    lines = []
    for label, values, dashed in curves:
        x, y = list(blocks), list[float | None](values)
        for index in reversed(ends):
            x.insert(index, blocks[index])  # a point without a value breaks the line
            y.insert(index, None)
        lines.append(Line(label, x, y, dashed=dashed))
    return LineChart(title=title, note=note, lines=lines, x_label="block", y_label=y_label, y_range=(0.0,))


def _relative(values: Sequence[float]) -> list[float]:
    largest = max(values)
    return [value / largest if largest > 0 else value for value in values]


GRADIENTS_EXPLAINED = (
    "Norms of the gradient of the loss with respect to each block's output and to its weights, on a logarithmic scale. "
    "With a working shortcut the first line stays level."
)
USE_EXPLAINED = (
    "The relative change that each block makes to its input, on a logarithmic scale: below the dashed line a block has "
    "almost no effect. The effective rank counts the directions in which positions differ."
)


def doctor_page(diagnosis: Mapping[str, Any], curves: Curves | None = None) -> str:
    """The page of a `Diagnosis.to_json()`: findings, charts, all numbers. `curves` are those of a run."""
    blocks, joins, limits, run = diagnosis["blocks"], diagnosis["joins"], diagnosis["limits"], curves or {}
    columns = (Column("join", "name"), Column("kind", "name"), "channels before", "new channels", "RMS(x)/RMS(y)")
    keys = ("name", "kind", "width", "fresh")
    rows = [[*(str(join[key]) for key in keys), short(join["ratio"])] for join in joins]
    severities = [finding["severity"] for finding in diagnosis["findings"]]
    color = next((severity for severity in ("severe", "warning") if severity in severities), "good")
    gammas = [block["gamma"] for block in blocks if block["gamma"] is not None]
    facts = [("blocks", str(len(blocks)))]
    if gammas:
        facts += [("mean γ", f"{sum(gammas) / len(gammas):.3f}"), ("last γ", f"{gammas[-1]:.3f}")]
    sections = [
        section("Findings", *map(_finding, diagnosis["findings"])),
        section("Shortcut", figures(*_shortcut(blocks, limits, diagnosis["weights"], run)),
                *gamma_words([{"gamma": gammas}])),
        section("Gradients", figures(_gradients(blocks)), paragraph(GRADIENTS_EXPLAINED)),
        section("Use of depth and width", figures(*_use(blocks, limits)), paragraph(USE_EXPLAINED)),
        section("Joins", Table(columns, rows).html()),
        section("Training run", figures(*_run(run))),
        section("All blocks", _block_table(blocks).html()),
        section("Limits", paragraph(", ".join(f"{name} {value:g}" for name, value in limits.items())
                                    + ". stepsnet/analysis/doctor/rules.py gives the reasons.")),
    ]  # fmt: skip
    lead = f"{diagnosis['weights']}; measured on {diagnosis['data']}"
    return page(f"Doctor: {diagnosis['name']}", lead, sections, verdict=diagnosis["verdict"], color=color, facts=facts)


def write_doctor_page(path: Path, diagnosis: Mapping[str, Any], curves: Curves | None = None) -> Path:
    return write(path, doctor_page(diagnosis, curves))


def _finding(finding: Mapping[str, Any]) -> str:
    severity = finding["severity"]
    name = f'<strong class="{severity}">{severity}</strong> · <code>{escape(finding["name"])}</code>'
    parts = [
        f"<p>{name}<br>{escape(finding['what'])}</p>",
        paragraph(finding["advice"]), command(finding["command"]),
        f'<p class="lead">Rule: {escape(finding["rule"])}. Measured: {short(finding["value"])}.</p>',
    ]  # fmt: skip
    return f'<div class="finding {severity}">\n' + "\n".join(filter(None, parts)) + "\n</div>"


def _shortcut(blocks: Blocks, limits: Mapping[str, float], weights: str, run: Curves) -> list[Chart]:
    depth = range(1, len(blocks) + 1)
    lines = [Line(f"γ, {weights}", depth, _column(blocks, "gamma"), STEPS)]
    recorded = [line for line in run.get("gamma", ()) if len(line["gamma"]) == len(blocks)]
    if recorded:
        worst = min(recorded, key=lambda line: sum(value or 0.0 for value in line["gamma"]))
        lines.append(Line(f"lowest, step {worst['step']:,}", depth, worst["gamma"], RESIDUAL))
    note = f"Dashed: the limit of the median, {limits['gamma']:g}."
    return [
        LineChart(title="γ over depth", note=note, lines=lines, x_label="block", y_label="γ", y_range=(0.0, 1.0),
                  reference=limits["gamma"]),
        _by_block(blocks, "sigma", "Size of the state", "σ(z_l)", STEPS, log=True),
    ]


def _gradients(blocks: Blocks) -> Chart:
    depth = range(1, len(blocks) + 1)
    lines = [
        Line("‖∂L/∂y‖, output of the block", depth, _column(blocks, "state_gradient"), STEPS),
        Line("‖∂L/∂w‖, weights of the block", depth, _column(blocks, "weight_gradient"), OTHER),
    ]
    return LineChart(title="Gradient norms over depth", lines=lines, x_label="block", y_label="norm", log_y=True)


def _use(blocks: Blocks, limits: Mapping[str, float]) -> list[Chart]:
    update = Line("", range(1, len(blocks) + 1), _column(blocks, "update"), MATCHED)
    return [
        LineChart(title="Relative change by each block", lines=[update], x_label="block", width=330, log_y=True,
                  y_label="‖z_l − z_(l−1)‖ / ‖z_(l−1)‖", reference=limits["idle"]),
        _by_block(blocks, "cosine", "Cosine with the state before", "cosine", VALIDATION, width=330),
        _by_block(blocks, "rank", "Effective rank of the state", "rank", OTHER, width=330),
    ]


def _by_block(
    blocks: Blocks, key: str, title: str, y_label: str, color: str, *, log: bool = False, width: int = 500
) -> Chart:
    line = Line("", range(1, len(blocks) + 1), _column(blocks, key), color)
    return LineChart(title=title, lines=[line], x_label="block", y_label=y_label, log_y=log, width=width)


def _run(run: Curves) -> list[Chart]:
    charts: list[Chart] = []
    shown = (("loss", "Training loss", TRAINING), ("grad_norm", "Gradient norm before clipping", OTHER))
    for key, title, color in shown:
        known = [line for line in run.get("metrics", ()) if key in line]
        line = Line("", *binned([line["step"] for line in known], [line[key] for line in known]), color)
        charts.append(LineChart(title=title, lines=[line], x_label="step", y_label=key))
    return charts


def _block_table(blocks: Blocks) -> Table:
    keys = ("width", "gamma", "sigma", "update", "cosine", "rank", "largest", "state_gradient", "weight_gradient")
    titles = ("width", "γ", "σ", "update", "cosine", "rank", "max |z|", "‖∂L/∂y‖", "‖∂L/∂w‖")
    rows = [[str(index), block["name"], *(short(block[key]) for key in keys)] for index, block in enumerate(blocks, 1)]
    return Table((Column("block"), Column("name", "name"), *titles), rows)


def _column(blocks: Blocks, key: str) -> list[float | None]:
    return [block[key] for block in blocks]
